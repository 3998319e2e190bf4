"""The orders of every rank, which rank 0 makes of the samples that arrive.

Inbox.take  -->  Director (rank 0)  --one order per rank-->  every rank's loop

Train x gradient_accumulation_steps, End, Train ...   until max_steps, the last prompt, or a stop
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from asyncgrpo.records import Row
from asyncgrpo.training.intake.batches import Batch
from asyncgrpo.training.intake.inbox import Inbox
from asyncgrpo.training.orders import End, Finish, Order, Train, Wait
from asyncgrpo.training.parallel import receive_order, send_orders
from asyncgrpo.training.publish import Publishing

WAIT_S = 10.0  # how often rank 0 tells the others that it still waits for samples


@dataclass(frozen=True, slots=True)
class Schedule:
    """The configuration of steps."""

    num_ranks: int
    accumulation: int
    max_steps: int | None  # None = the prompts decide
    weight_sync_steps: int
    logging_steps: int
    save_steps: int | None
    per_step: bool  # loss.normalization: step
    token_budget: int


def follow() -> Iterator[Order]:
    """Rank 0's orders up to Finish, on any other rank."""
    while True:
        order = receive_order()
        yield order
        if isinstance(order, Finish):
            return


class Director:
    """Rank 0's orders; iterating gives its own and sends the others theirs."""

    def __init__(
        self, inbox: Inbox, publisher: Publishing, schedule: Schedule, *, step: int
    ) -> None:
        self._waited_s = 0.0  # for samples, since the last step
        self._batches: list[Batch] = []  # of the step under way
        self._inbox = inbox
        self._publisher = publisher
        self._schedule = schedule
        self._step = step  # finished
        self._saved = self._logged = step

    def __iter__(self) -> Iterator[Order]:
        while True:
            orders = self._next()
            yield send_orders(orders)
            if isinstance(orders[0], Finish):
                return

    def _next(self) -> list[Order]:
        self._publisher.check()
        if not self._batches and (self._inbox.stopping or self._is_last(self._step)):
            return self._to_all(self._finish())
        if len(self._batches) == self._schedule.accumulation:
            return self._end()
        batch = self._take()
        if batch is not None:
            self._batches.append(batch)
            return self._train(batch)
        if self._inbox.stopping or self._inbox.finished:
            return self._end() if self._batches else self._to_all(self._finish())
        return self._to_all(Wait())

    def _take(self) -> Batch | None:
        started = time.perf_counter()
        batch = self._inbox.take(WAIT_S)
        self._waited_s += time.perf_counter() - started
        return batch

    def _train(self, batch: Batch) -> list[Order]:
        denominator = max(batch.num_trained, 1)
        if self._schedule.per_step:
            denominator = self._provisional_denominator
        return [
            Train(row, float(denominator), self._inbox.version, counts=rank < len(batch.rows))
            for rank, row in enumerate(_one_per_rank(batch.rows, self._schedule.num_ranks))
        ]

    @property
    def _provisional_denominator(self) -> int:
        """A provisional denominator: the step's end rescales by the true count."""
        return self._schedule.num_ranks * self._schedule.token_budget

    def _end(self) -> list[Order]:
        """The end of the step; only rank 0's order has the batches."""
        self._step += 1
        step, schedule = self._step, self._schedule
        batches, self._batches = tuple(self._batches), []
        waited_s, self._waited_s = self._waited_s, 0.0
        scale = 1.0 / len(batches)
        if schedule.per_step:
            num_trained = sum(batch.num_trained for batch in batches)
            scale = self._provisional_denominator / max(num_trained, 1)
        save = schedule.save_steps is not None and step % schedule.save_steps == 0
        log = step % schedule.logging_steps == 0
        if save:
            self._saved = step
        if log:
            self._logged = step
        end = End(
            gradient_scale=scale,
            publish=step % schedule.weight_sync_steps == 0,
            save=save,
            log=log,
        )
        mine = msgspec.structs.replace(end, batches=batches, waited_s=waited_s)
        return [mine, *self._to_all(end)[1:]]

    def _finish(self) -> Finish:
        return Finish(
            save=self._schedule.save_steps is not None and self._step > self._saved,
            log=self._step > self._logged,
        )

    def _is_last(self, step: int) -> bool:
        return self._schedule.max_steps is not None and step >= self._schedule.max_steps

    def _to_all(self, order: Order) -> list[Order]:
        return [order] * self._schedule.num_ranks


def _one_per_rank(rows: tuple[Row, ...], num_ranks: int) -> tuple[Row, ...]:
    """A row for each rank; a short micro-batch repeats one, which does not count."""
    return rows + rows[:1] * (num_ranks - len(rows))
