"""Prompts that are read while training: in bounded memory, pass after pass."""

import asyncio
import json
import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.config.sections.data import DataConfig
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data import stream
from asyncgrpo.rollout.data.conversation import RowError
from asyncgrpo.rollout.data.prompts import load_prompts
from asyncgrpo.rollout.data.stream import UNKNOWN_LENGTH, PromptStream, shuffled

USER = [{"role": "user", "content": "hi"}]


class Rows:
    """A stream that counts what is read of it, and may break."""

    def __init__(self, num_rows, *, breaks_at=None):
        self.num_rows, self.breaks_at, self.read = num_rows, breaks_at, 0

    def __iter__(self):
        for i in range(self.num_rows):
            if i == self.breaks_at:
                raise ConnectionError("the hub is gone")
            self.read += 1
            yield {"prompt": USER, "i": i}


def source(**fields):
    leaves: dict[str, Any] = {"path": "stream", "streaming": True, "shuffle": False} | fields
    return DataConfig(**leaves)


async def taken(prompts, count):
    return [await prompts.take(seed=0, epoch=0, position=0) for _ in range(count)]


async def test_rows_come_in_order_and_again_after_the_last():
    prompts = PromptStream(Rows(3), source(), seed=0)
    got = await taken(prompts, 7)
    assert [prompt.row_index for prompt in got] == [0, 1, 2, 0, 1, 2, 0]
    assert [prompt.epoch for prompt in got] == [0, 0, 0, 1, 1, 1, 2]
    assert got[4].columns == {"i": 1}
    assert len(prompts) == UNKNOWN_LENGTH


async def test_no_more_is_read_than_the_buffer_holds(monkeypatch):
    rows = Rows(10**6)
    prompts = PromptStream(rows, source(), seed=0)
    await asyncio.sleep(0.3)
    assert rows.read <= stream.BUFFER_ROWS + 3
    await taken(prompts, 10)
    await asyncio.sleep(0.1)
    assert rows.read <= stream.BUFFER_ROWS + 13


async def test_max_prompts_makes_a_pass_of_the_first_rows():
    prompts = PromptStream(Rows(100), source(max_prompts=2), seed=0)
    assert len(prompts) == 2
    assert [p.row_index for p in await taken(prompts, 5)] == [0, 1, 0, 1, 0]


async def test_a_stream_shorter_than_max_prompts_says_its_length():
    prompts = PromptStream(Rows(3), source(max_prompts=9), seed=0)
    with pytest.raises(DataError, match=r"data.max_prompts: got 9.*ended after 3 rows"):
        await taken(prompts, 4)


@given(st.integers(0, 3000), st.integers(0, 5))
def test_shuffling_keeps_every_row_and_no_row_comes_far_ahead_of_its_turn(num_rows, seed):
    rows = [(i, {}) for i in range(num_rows)]
    order = [i for i, _ in shuffled(rows, random.Random(seed))]
    assert sorted(order) == list(range(num_rows))
    assert all(i <= at + stream.SHUFFLE_ROWS for at, i in enumerate(order))
    assert order == [i for i, _ in shuffled(rows, random.Random(seed))]


async def test_the_order_follows_from_seed_and_pass_alone():
    async def order(seed):
        prompts = PromptStream(Rows(40), source(shuffle=True), seed=seed)
        return [p.row_index for p in await taken(prompts, 80)]

    one = await order(1)
    assert one == await order(1)
    assert one != await order(2)
    assert sorted(one[:40]) == sorted(one[40:]) == list(range(40))
    assert one[:40] != one[40:]


def test_an_empty_stream_and_a_missing_column_are_told_at_the_start():
    with pytest.raises(DataError, match="has no rows"):
        PromptStream(Rows(0), source(), seed=0)
    with pytest.raises(DataError, match="no column `question`; it has `prompt`, `i`"):
        PromptStream(Rows(1), source(prompt_column="question"), seed=0)


async def test_a_row_that_is_no_prompt_costs_itself():
    rows = [{"prompt": USER}, {"prompt": "text"}, {"prompt": USER}]
    prompts = PromptStream(rows, source(), seed=0)
    await taken(prompts, 1)
    with pytest.raises(RowError, match="row 1: column `prompt` holds 'text'"):
        await taken(prompts, 1)
    assert (await taken(prompts, 1))[0].row_index == 2


async def test_a_stream_that_breaks_is_named():
    prompts = PromptStream(Rows(9, breaks_at=2), source(), seed=0)
    with pytest.raises(DataError, match="`stream`: ConnectionError: the hub is gone"):
        await taken(prompts, 3)


async def test_a_stream_that_is_no_longer_used_is_read_no_further():
    before = threading.enumerate()
    prompts = PromptStream(Rows(10**6), source(), seed=0)
    (reader,) = [each for each in threading.enumerate() if each not in before]
    await taken(prompts, 10)
    del prompts
    reader.join(20)
    assert not reader.is_alive()


async def test_a_shuffle_that_fills_its_buffer_is_stopped_too(monkeypatch):
    monkeypatch.setattr(stream, "STOP_S", 0.0)  # the row under way takes long
    waits, may_go_on = threading.Event(), threading.Event()

    class SecondPassWaits(Rows):
        def __iter__(self):
            if self.read:
                self.num_rows = 500  # fewer than a shuffle reads first
                waits.set()
                may_go_on.wait(20)
            yield from super().__iter__()

    before, rows = threading.enumerate(), SecondPassWaits(10)
    prompts = PromptStream(rows, source(shuffle=True), seed=0)
    (reader,) = [each for each in threading.enumerate() if each not in before]
    await taken(prompts, 10)
    await asyncio.to_thread(waits.wait, 20)
    del prompts
    may_go_on.set()
    reader.join(20)
    assert not reader.is_alive()
    assert rows.read == 11


async def test_a_slow_stream_does_not_hold_the_loop():
    may_go_on = threading.Event()

    class Slow:
        def __iter__(self):
            yield {"prompt": USER}
            may_go_on.wait(20)
            yield {"prompt": USER}

    prompts = PromptStream(Slow(), source(), seed=0)
    waiting = asyncio.ensure_future(taken(prompts, 2))
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert not waiting.done()
    may_go_on.set()
    assert len(await waiting) == 2


def rows_of(count):
    return [{"prompt": USER, "answer": str(i)} for i in range(count)]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "folder", "saved"])
async def test_every_form_of_a_local_dataset_streams(tmp_path, form):
    import datasets

    table = datasets.Dataset.from_list(rows_of(5))
    path = tmp_path / form
    if form == "jsonl":
        path = tmp_path / "a.jsonl"
        path.write_text("\n".join(map(json.dumps, rows_of(5))))
    elif form == "parquet":
        path = tmp_path / "a.parquet"
        table.to_parquet(path)
    elif form == "folder":
        path.mkdir()
        table.to_parquet(path / "train.parquet")
    else:
        table.save_to_disk(str(path))
    prompts = load_prompts(DataConfig(path=str(path), streaming=True, shuffle=False))
    assert isinstance(prompts, PromptStream)
    assert prompts.column_names == ["answer"]
    assert [p.columns["answer"] for p in await taken(prompts, 6)] == ["0", "1", "2", "3", "4", "0"]


async def test_csv_streams_through_a_template(tmp_path):
    (tmp_path / "a.csv").write_text("question,answer\n1 + 1,2\n2 + 2,4\n")
    data = DataConfig(
        path=str(tmp_path / "a.csv"), streaming=True, shuffle=False, prompt_template="{question}"
    )
    (first, second) = await taken(load_prompts(data), 2)
    assert first.messages == [{"role": "user", "content": "1 + 1"}]
    assert second.columns == {"question": "2 + 2", "answer": "4"}
