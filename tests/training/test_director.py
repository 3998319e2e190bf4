"""The orders of rank 0: a row for each rank as soon as its micro-batch is there."""

from itertools import islice
from typing import cast

import pytest

from asyncgrpo.packing.planner import PlannedRow
from asyncgrpo.packing.row import build_row
from asyncgrpo.training import director
from asyncgrpo.training.director import Director, Schedule
from asyncgrpo.training.intake.batches import Batch
from asyncgrpo.training.intake.inbox import Inbox
from asyncgrpo.training.orders import End, Finish, Order, Train
from asyncgrpo.training.publish import Publishing
from tests.training.scripted_worker import make_group

RANKS = 3


class FewBatches:
    """An inbox with some micro-batches in it, then none."""

    def __init__(self, *num_rows: int) -> None:
        self.left = [micro_batch(position, rows) for position, rows in enumerate(num_rows)]
        self.taken: list[Batch] = []
        self.stopping = False
        self.version = 0

    @property
    def finished(self) -> bool:
        return not self.left

    def take(self, timeout: float) -> Batch | None:
        if not self.left:
            return None
        self.taken.append(self.left.pop(0))
        return self.taken[-1]


class NothingPublished:
    def check(self) -> None:
        pass


def micro_batch(position: int, num_rows: int) -> Batch:
    groups = [make_group(0, RANKS * position + rank).samples for rank in range(num_rows)]
    rows = tuple(build_row(samples) for samples in groups)
    planned = tuple(
        PlannedRow(samples, row.input_ids_N.size, row.term_target_T.size, 1)
        for samples, row in zip(groups, rows, strict=True)
    )
    return Batch(planned, rows)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[Order]]:
    """The orders that each call sent, by rank."""
    sent: list[list[Order]] = []

    def send(orders: list[Order]) -> Order:
        sent.append(orders)
        return orders[0]

    monkeypatch.setattr(director, "send_orders", send)
    return sent


def make_director(inbox: FewBatches, accumulation: int = 2) -> Director:
    schedule = Schedule(
        num_ranks=RANKS, accumulation=accumulation, max_steps=None, weight_sync_steps=1,
        logging_steps=1, save_steps=None, per_step=False, token_budget=64,
    )  # fmt: skip
    return direct(inbox, schedule)


def direct(inbox: FewBatches, schedule: Schedule) -> Director:
    """A director from the first step on; the fakes have what it uses."""
    publisher = cast("Publishing", NothingPublished())
    return Director(cast("Inbox", inbox), publisher, schedule, step=0)


def test_each_rank_is_sent_its_own_row_only(sent):
    inbox = FewBatches(RANKS)
    next(iter(make_director(inbox)))
    (orders,) = sent
    assert [order.row.sample_keys for order in orders] == [
        row.sample_keys for row in inbox.taken[0].rows
    ]
    assert len({order.denominator for order in orders}) == 1
    assert all(order.counts for order in orders)


def test_the_first_forward_starts_with_the_first_micro_batch_not_with_the_last(sent):
    inbox = FewBatches(RANKS, RANKS, RANKS, RANKS)
    orders = iter(make_director(inbox, accumulation=4))
    assert isinstance(next(orders), Train)
    assert len(inbox.taken) == 1
    assert [type(order) for order in islice(orders, 4)] == [Train, Train, Train, End]


def test_a_rank_without_a_row_of_the_last_micro_batch_repeats_one_that_does_not_count(sent):
    orders = list(make_director(FewBatches(RANKS, 1)))
    assert [type(order) for order in orders] == [Train, Train, End, Finish]
    assert [order.counts for order in sent[1]] == [True, False, False]


def test_a_step_cut_short_by_the_end_is_taken_over_what_it_has(sent):
    *_, end, finish = list(make_director(FewBatches(RANKS), accumulation=4))
    assert isinstance(end, End)
    assert (end.gradient_scale, end.publish, end.save, end.log) == (1.0, True, False, True)
    assert finish == Finish(save=False, log=False)


def test_the_end_of_a_step_gives_its_batches_to_rank_0_alone(sent):
    inbox = FewBatches(RANKS, RANKS, RANKS)
    first, second = (order for order in make_director(inbox) if isinstance(order, End))
    assert (first.batches, second.batches) == (tuple(inbox.taken[:2]), tuple(inbox.taken[2:]))
    assert first.waited_s > 0
    assert second.waited_s > 0
    for _, *others in (orders for orders in sent if isinstance(orders[0], End)):
        assert all((order.batches, order.waited_s) == ((), 0.0) for order in others)


def test_rows_train_with_the_version_that_the_weights_have(sent):
    inbox = FewBatches(RANKS, RANKS)
    orders = iter(make_director(inbox))
    first = next(orders)
    inbox.version = 3
    second = next(orders)
    assert isinstance(first, Train)
    assert isinstance(second, Train)
    assert (first.policy_version, second.policy_version) == (0, 3)


def test_the_steps_after_the_last_whole_log_window_are_logged_at_the_end(sent):
    batches = [RANKS] * 10
    schedule = Schedule(
        num_ranks=RANKS, accumulation=2, max_steps=None, weight_sync_steps=1,
        logging_steps=3, save_steps=None, per_step=False, token_budget=64,
    )  # fmt: skip
    orders = list(direct(FewBatches(*batches), schedule))
    assert [order.log for order in orders if isinstance(order, End)] == [
        *(False, False, True),
        *(False, False),
    ]
    assert orders[-1] == Finish(save=False, log=True)
