"""Rows to measure with: one full of forks, and one group with and without its shared prompt.

forked    a system prompt, prompts, turns; fan-out 16, one-token samples, a prefix of another
group     G samples of P + C tokens: raw G (P + C), forwarded P + G C (but for the forks)
"""

from dataclasses import dataclass

import numpy as np

from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row
from tests.training.packed_samples import VOCABULARY, make_sample


def forked_row(scale: int) -> Row:
    """A row whose segments are about `scale` tokens long, and some a single one."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> list[int]:
        return rng.integers(0, VOCABULARY, n).tolist()

    system, prompt, turn = draw(scale), draw(2 * scale), draw(scale)
    sequences = [system + prompt + draw(int(rng.integers(1, scale))) for _ in range(16)]
    sequences += [system + prompt + turn + draw(n) for n in (1, scale, 2 * scale)]
    sequences += [system + turn + draw(scale), sequences[17][: 3 * scale + 2], [3], [5]]
    return build_row([make_sample(i, ids, 1) for i, ids in enumerate(sequences)])


@dataclass(frozen=True)
class Group:
    """Rollouts of one prompt."""

    num_samples: int
    prompt: int
    completion: int

    @property
    def ratio(self) -> float:
        """R: raw tokens over forwarded tokens, where the prompt is shared."""
        raw = self.num_samples * (self.prompt + self.completion)
        return raw / (self.prompt + self.num_samples * self.completion)

    def row(self, *, shared: bool) -> Row:
        """The group as one row; unshared, every sample begins with a token of its own."""
        rng = np.random.default_rng(0)
        prompt = rng.integers(0, VOCABULARY, self.prompt)
        samples = []
        for index in range(self.num_samples):
            ids = np.concatenate([prompt, rng.integers(0, VOCABULARY, self.completion)])
            if not shared:
                ids[0] = index
            samples.append(make_sample(index, ids.tolist(), self.prompt))
        return build_row(samples)
