"""One run by hand, then: nothing lost, nothing twice, whatever the order."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.ledger.states import Ledger
from asyncgrpo.records import SampleKey

NUM_PROMPTS = 5
G = 3


def group(ordinal: int, num_samples: int = G) -> list[SampleKey]:
    epoch, position = divmod(ordinal, NUM_PROMPTS)
    return [SampleKey(epoch, position, index) for index in range(num_samples)]


def state(ledger: Ledger):
    return ledger.state(step=3, policy_version=2, seed=42)


def test_a_run_by_hand():
    ledger = Ledger(NUM_PROMPTS)
    for ordinal in range(3):
        assert ledger.offer(group(ordinal)) == set(group(ordinal))
    ledger.trained([*group(0), *group(2)[:2]])
    ledger.drop_prompt(0, 3, "no_signal")
    saved = state(ledger)
    assert (saved.epoch, saved.prompt_index) == (0, 1)
    assert saved.resolved == ((0, 1), (3, 4))
    assert saved.partial == {"2": (0, 1)}
    assert saved.dropped == {"no_signal": 1}


def test_a_dropped_group_does_not_pin_the_position():
    ledger = Ledger(NUM_PROMPTS)
    for ordinal in range(3):
        ledger.offer(group(ordinal))
    for key in group(0):
        ledger.dropped(key, "stale")
    ledger.trained(group(1))
    assert ledger.first_ordinal == 2
    assert state(ledger).dropped == {"stale": 1}


def test_a_partly_dropped_group_counts_as_trained():
    ledger = Ledger(NUM_PROMPTS)
    first, *others = group(0)
    ledger.offer(group(0))
    ledger.dropped(first, "oversize")
    ledger.trained(others)
    assert ledger.counts.trained == 1
    assert ledger.counts.dropped == 0


def test_samples_trained_before_a_resume_are_refused_after_it():
    ledger = Ledger(NUM_PROMPTS)
    ledger.offer(group(0))
    ledger.trained(group(0)[:2])
    resumed = Ledger.restore(state(ledger))
    assert resumed.first_ordinal == 0
    assert resumed.offer(group(0)) == {group(0)[2]}
    assert resumed.refused_samples == 2
    resumed.trained(group(0)[2:])
    assert resumed.first_ordinal == 1


def test_a_group_generated_again_with_nothing_new_is_resolved_at_once():
    ledger = Ledger(NUM_PROMPTS)
    ledger.offer(group(0))
    ledger.trained(group(0)[:2])
    resumed = Ledger.restore(state(ledger))
    assert resumed.offer(group(0, num_samples=2)) == set()
    assert resumed.first_ordinal == 1


def test_the_next_epoch_may_begin_before_the_last_prompt_of_this_one():
    ledger = Ledger(NUM_PROMPTS)
    for ordinal in (0, 1, 2, 3, 5, 6):
        ledger.offer(group(ordinal))
        ledger.trained(group(ordinal))
    saved = state(ledger)
    assert (saved.epoch, saved.prompt_index) == (0, 4)
    assert saved.resolved == ((0, 4), (5, 7))
    ledger.offer(group(4))
    ledger.trained(group(4))
    saved = state(ledger)
    assert (saved.epoch, saved.prompt_index) == (1, 2)
    assert saved.resolved == ((0, 2),)


def test_an_epoch_that_is_done_leaves_the_next_one_untouched():
    ledger = Ledger(NUM_PROMPTS)
    for position in range(NUM_PROMPTS):
        ledger.drop_prompt(0, position, "no_signal")
    saved = state(ledger)
    assert (saved.epoch, saved.prompt_index, saved.resolved) == (1, 0, ())
    assert Ledger.restore(saved).resolved == ((0, NUM_PROMPTS),)


events = st.lists(
    st.tuples(st.integers(0, 2 * NUM_PROMPTS - 1), st.sampled_from(["train", "drop", "prompt"])),
    max_size=60,
)


@given(events, st.integers(0, 60))
def test_nothing_is_lost_and_nothing_counted_twice(order, resume_after: int):
    """Each event settles one waiting sample; at `resume_after` the process dies and resumes."""
    ledger = Ledger(NUM_PROMPTS)
    trained: Counter[SampleKey] = Counter()
    waiting: dict[int, list[SampleKey]] = {}
    touched: set[int] = set()
    for number, (ordinal, event) in enumerate(order):
        if number == resume_after:
            ledger = Ledger.restore(state(ledger))
            waiting.clear()
        if event == "prompt":
            if not waiting.get(ordinal):
                epoch, position = divmod(ordinal, NUM_PROMPTS)
                ledger.drop_prompt(epoch, position, "filtered")
                touched.add(ordinal)
            continue
        if not waiting.get(ordinal):
            waiting[ordinal] = sorted(ledger.offer(group(ordinal)))
        if waiting[ordinal]:
            key = waiting[ordinal].pop()
            if event == "train":
                ledger.trained([key])
                trained[key] += 1
            else:
                ledger.dropped(key, "stale")
    assert max(trained.values(), default=1) == 1
    saved = state(ledger)
    assert state(Ledger.restore(saved)) == saved
    resolved = {n for start, end in ledger.resolved for n in range(start, end)}
    assert saved.prompt_index + saved.epoch * NUM_PROMPTS == min(set(range(99)) - resolved)
    assert ledger.counts.trained + ledger.counts.dropped == len(resolved)
    unresolved_trained = {ledger.ordinal(key) for key in trained} - resolved
    base = saved.epoch * NUM_PROMPTS
    assert {base + int(position) for position in saved.partial} == unresolved_trained
    assert touched <= resolved


@given(st.permutations([key for ordinal in range(NUM_PROMPTS) for key in group(ordinal)]))
def test_the_order_of_training_does_not_matter(keys: list[SampleKey]):
    ledger = Ledger(NUM_PROMPTS)
    for ordinal in range(NUM_PROMPTS):
        ledger.offer(group(ordinal))
    for key in keys:
        ledger.trained([key])
    assert ledger.first_ordinal == NUM_PROMPTS
    assert ledger.counts.trained == NUM_PROMPTS
    assert ledger.counts.queued == 0
