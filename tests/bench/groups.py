"""Groups of samples for the benchmarks: one random prompt, G answers of random tokens.

group   p p p p a a a        answers of `answer` tokens on average,
p p p p b b b b b    uniform in [1 - spread / 2, 1 + spread / 2] of that
"""

from collections.abc import Iterator

import numpy as np

from asyncgrpo.records import Sample, SampleKey

VOCABULARY = 150_000


def make_groups(
    num_groups: int, group_size: int, prompt: int, answer: int, *, spread: float = 1.0,
    vocabulary: int = VOCABULARY,
) -> Iterator[Sample]:  # fmt: skip
    """The samples of `num_groups` groups, one group after another; the same at every call."""
    rng = np.random.default_rng(0)
    for position in range(num_groups):
        prompt_ids = rng.integers(0, vocabulary, prompt)
        for index in range(group_size):
            length = round(answer * (1 + spread * (rng.random() - 0.5)))
            input_ids = np.concatenate([prompt_ids, rng.integers(0, vocabulary, length)])
            trained = np.zeros(input_ids.size, np.uint8)
            trained[max(prompt, 1) :] = 1
            yield Sample(
                key=SampleKey(0, position, index),
                input_ids=input_ids.astype(np.int32),
                trained=trained,
                sampler_logprobs=-trained.astype(np.float32),
                advantage=float(index),
                policy_version=0,
            )
