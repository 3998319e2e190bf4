r"""The demo's reward: the last box holds the right sum, and the answer was ended.

\boxed{95}<|im_end|>      1.0      right, and ended
\boxed{95}                0.0      cut off: without this rule the policy learns never to stop
\boxed{95} \boxed{94}...  0.0      only the last box counts
"""

import re
from collections.abc import Sequence

EOS_ID = 2  # <|im_end|> in the demo's tokenizer, see tokenizer.py
BOX = re.compile(r"\\boxed\{([^{}]*)\}")  # a box that holds another is no number

Message = dict[str, str]


def boxed_sum(
    completions: Sequence[list[Message]],
    completion_ids: Sequence[Sequence[int]],
    answer: Sequence[str],
    eos_id: int = EOS_ID,
    **_columns: object,
) -> list[float]:
    """Score each completion 1.0 or 0.0 against its row's `answer`."""
    return [
        float(ends_with(ids, eos_id) and last_box(completion[-1]["content"]) == expected)
        for completion, ids, expected in zip(completions, completion_ids, answer, strict=True)
    ]


def ends_with(ids: Sequence[int], eos_id: int) -> bool:
    """True if the sampler ended the completion by itself."""
    return len(ids) > 0 and ids[-1] == eos_id


def last_box(text: str) -> str | None:
    r"""Read the last `\boxed{}` of a text; None where there is none.

    >>> last_box(r"\boxed{94}, no: \boxed{ 95 }")
    '95'
    """
    boxes = BOX.findall(text)
    return boxes[-1].strip() if boxes else None
