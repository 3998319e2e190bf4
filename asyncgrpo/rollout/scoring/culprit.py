"""The completion that a reward function was at when it raised.

    its frames, innermost first  --a local that is a completion of the group-->  that one
                                 --none-->  the first of the group, as an example

A function scores a whole group, so its error does not say which completion it is about; the
variables of its frames mostly do.
"""

from collections.abc import Sequence

from asyncgrpo.process.user_code import own_frames
from asyncgrpo.rollout.group import Messages

SHOWN = 120  # characters of a completion


def describe_culprit(error: BaseException, completions: Sequence[Messages]) -> str:
    """The completion in words, cut to `SHOWN` characters."""
    if not completions:
        return "no completion"
    index = find_culprit(error, completions)
    text = _text(completions[index or 0])
    shown = repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
    if index is None:
        return f"its group has {len(completions)} completions, the first is {shown}"
    return f"completion {index + 1} of {len(completions)}: {shown}"


def find_culprit(error: BaseException, completions: Sequence[Messages]) -> int | None:
    """The index of the completion; None where the variables show none, or several."""
    texts = [_text(completion) for completion in completions]
    for frame, _ in reversed([*own_frames(error.__traceback__)]):
        values = [value for value in frame.f_locals.values() if isinstance(value, (str, list))]
        found = {
            i
            for i, (completion, text) in enumerate(zip(completions, texts, strict=True))
            if any(value in (completion, text) for value in values if value)
        }
        if len(found) == 1:
            return found.pop()
    return None


def _text(completion: Messages) -> str:
    content = completion[-1].get("content") if completion else ""
    return content if isinstance(content, str) else str(content)
