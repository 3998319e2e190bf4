"""The states of prompts and samples: the memory that makes a resume exact.

    offered  --trained(key)-->  trained  ─┐
             --dropped(key)-->  dropped  ─┴─>  all samples of the group: the prompt is resolved
    prompt   --drop_prompt-->                  resolved, nothing of it was offered

An *ordinal* counts prompts over epochs: ordinal = epoch x num_prompts + position. A resolved
ordinal stays so, wherever it lies: one unresolved prompt holds back the position, not the
prompts after it, and one dropped group holds back nothing.

Pure bookkeeping: no files, no threads, no clock.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from asyncgrpo.ledger.intervals import IntervalSet, Spans
from asyncgrpo.ledger.state_file import RolloutState
from asyncgrpo.records import SampleKey


@dataclass(slots=True)
class _Group:
    """A prompt with samples offered or trained, not yet resolved."""

    offered: set[int] = field(default_factory=set[int])
    trained: set[int] = field(default_factory=set[int])
    dropped: set[int] = field(default_factory=set[int])
    last_reason: str = ""

    @property
    def settled(self) -> set[int]:
        return self.trained | self.dropped

    @property
    def outstanding(self) -> bool:
        return not self.offered <= self.settled


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Prompts by state since the run began; resolved = trained + dropped."""

    offered: int  # groups of which something was queued, resolved by now or not
    queued: int
    trained: int
    dropped: int
    dropped_by_reason: dict[str, int]

    @property
    def resolved(self) -> int:
        """Prompts that are trained or dropped."""
        return self.trained + self.dropped


class Ledger:
    """The states of every prompt and sample of one run, over all its epochs."""

    def __init__(self, num_prompts: int) -> None:
        self.num_prompts = num_prompts
        self._resolved = IntervalSet()
        self._open: dict[int, _Group] = {}
        self._dropped: Counter[str] = Counter()
        self._offered_groups = 0
        self.refused_samples = 0  # offered again though offered, trained or dropped before

    @classmethod
    def restore(cls, state: RolloutState) -> "Ledger":
        """The ledger of a saved state; what was only queued is unknown again."""
        ledger = cls(state.num_prompts)
        base = state.epoch * state.num_prompts
        ledger._resolved.add_span(0, base)
        for start, end in state.resolved:
            ledger._resolved.add_span(base + start, base + end)
        for position, trained in state.partial.items():
            ledger._open[base + int(position)] = _Group(trained=set(trained))
        ledger._dropped.update(state.dropped)
        return ledger

    def offer(self, keys: Iterable[SampleKey]) -> set[SampleKey]:
        """Registers the samples of one arriving group; returns those to train.

        A sample of a resolved prompt, or one offered or trained before, is refused and counted.
        """
        offered = list(keys)
        accepted = {key for key in offered if self._accept(key)}
        self.refused_samples += len(offered) - len(accepted)
        self._offered_groups += bool(accepted)
        for ordinal in {self.ordinal(key) for key in offered}:
            self._settle(ordinal)
        return accepted

    def trained(self, keys: Iterable[SampleKey]) -> None:
        """Records that the step with these samples is in the weights."""
        for key in keys:
            self._group(key).trained.add(key.index)
            self._settle(self.ordinal(key))

    def dropped(self, key: SampleKey, reason: str) -> None:
        """Records that an offered sample will not be trained."""
        group = self._group(key)
        group.dropped.add(key.index)
        group.last_reason = reason
        self._settle(self.ordinal(key))

    def drop_prompt(self, epoch: int, position: int, reason: str) -> None:
        """Records a prompt that the worker resolved without offering anything of it."""
        ordinal = epoch * self.num_prompts + position
        if ordinal in self._resolved:
            return
        group = self._open.setdefault(ordinal, _Group())
        if not group.outstanding:
            group.last_reason = reason
            self._resolve(ordinal, group)

    def ordinal(self, key: SampleKey) -> int:
        """The prompt's number over all epochs."""
        return key.epoch * self.num_prompts + key.position

    @property
    def first_ordinal(self) -> int:
        """The first prompt not yet resolved."""
        return self._resolved.first_missing()

    @property
    def resolved(self) -> Spans:
        """Half-open intervals of resolved ordinals."""
        return self._resolved.spans

    @property
    def not_wanted(self) -> Spans:
        """Half-open intervals of ordinals not to generate again: resolved or queued."""
        spans = IntervalSet(self._resolved.spans)
        for ordinal, group in self._open.items():
            if group.outstanding:
                spans.add(ordinal)
        return spans.spans

    @property
    def counts(self) -> LedgerCounts:
        """Prompts by state."""
        dropped = self._dropped.total()
        queued = sum(group.outstanding for group in self._open.values())
        trained = len(self._resolved) - dropped
        return LedgerCounts(self._offered_groups, queued, trained, dropped, dict(self._dropped))

    def state(self, *, step: int, policy_version: int, seed: int) -> RolloutState:
        """The content of `rollout_state.json` after `step` steps."""
        epoch, prompt_index = divmod(self.first_ordinal, self.num_prompts)
        base = epoch * self.num_prompts
        return RolloutState(
            step=step,
            policy_version=policy_version,
            epoch=epoch,
            seed=seed,
            num_prompts=self.num_prompts,
            prompt_index=prompt_index,
            resolved=tuple(
                (max(start - base, 0), end - base) for start, end in self.resolved if end > base
            ),
            partial={
                str(ordinal - base): tuple(sorted(group.trained))
                for ordinal, group in sorted(self._open.items())
                if group.trained
            },
            dropped=dict(sorted(self._dropped.items())),
            rng={"seed": seed, "step": step},
        )

    def _accept(self, key: SampleKey) -> bool:
        ordinal = self.ordinal(key)
        if ordinal in self._resolved:
            return False
        group = self._open.setdefault(ordinal, _Group())
        if key.index in group.offered:
            return False
        group.offered.add(key.index)
        return key.index not in group.settled

    def _group(self, key: SampleKey) -> _Group:
        group = self._open.get(self.ordinal(key))
        assert group is not None, f"{key} was never offered, or its prompt is resolved"
        assert key.index in group.offered - group.settled, f"{key} was not waiting"
        return group

    def _settle(self, ordinal: int) -> None:
        group = self._open.get(ordinal)
        if group is not None and group.offered and not group.outstanding:
            self._resolve(ordinal, group)

    def _resolve(self, ordinal: int, group: _Group) -> None:
        """Counts a resolved prompt: as trained if any sample of it was."""
        del self._open[ordinal]
        self._resolved.add(ordinal)
        if not group.trained:
            self._dropped[group.last_reason] += 1
