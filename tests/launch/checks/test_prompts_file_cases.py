"""The files that people bring: `validate` and the worker read the same of each, or refuse it."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.launch.checks import prompts_file
from asyncgrpo.rollout.data.prompts import Prompts, load_prompts
from asyncgrpo.rollout.data.stream import PromptStream

FILES = Path(__file__).parents[2] / "assets" / "cases" / "files"
SIX = [str(i) for i in range(1, 7)]
ANSWERS = {
    "06-ragged.jsonl": ["1", None, None],
    "08-msg-keys-bom.jsonl": ["1", "1", "2"],
    "10-dates.jsonl": ["2024-05-01", "1999-12-31"],
    "13-dates-mixed.jsonl": ["2024-05-01", "Ada"],
    "17-bigint.jsonl": [2**70, 2**53 + 1],
    "30-parts-text.jsonl": ["2"],
    "36-unknown-role.jsonl": ["2"],
    "43-kwarg-cols.jsonl": ["1"],
    "63-gz.jsonl.gz": SIX,
    "64-upper.JSONL": SIX,
    "71-zeros.csv": ["00501", "02134"],
    "73-na.csv": ["NA", "None", "null", "nan", "FR"],
    "84-float-int.csv": ["1", "2.5"],
}


def source_of(file: Path, **keys: Any) -> DataSource:
    if file.suffix.lower() in {".csv", ".tsv"}:
        keys = {"prompt_template": "{question}"} | keys
    return DataSource(path=str(file), shuffle=False, **keys)


def read_by_worker(source: DataSource) -> tuple[list[dict[str, Any]], list[str]]:
    """The columns of each row of the first epoch or pass, and the names of the columns."""
    prompts = load_prompts(source)
    if isinstance(prompts, Prompts):
        return [prompts[i].columns for i in range(len(prompts))], prompts.column_names
    assert isinstance(prompts, PromptStream)

    async def first_pass() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        while True:
            prompt = await prompts.take(seed=0, epoch=0, position=len(rows))
            if prompt.epoch:
                return rows
            rows.append(prompt.columns)

    return asyncio.run(first_pass()), prompts.column_names


def agreed(source: DataSource) -> str | list[dict[str, Any]]:
    """The rows, or the message of the refusal; both sides say the same."""
    looked = prompts_file.look(source)
    refusal = None
    rows, names = [], []
    try:
        rows, names = read_by_worker(source)
    except DataError as error:
        refusal = str(error)
    if refusal is not None:
        assert looked.problem is not None, refusal
        assert looked.problem.endswith(refusal)
        return looked.problem
    assert (looked.problem, looked.reward_columns) == (None, tuple(names))
    return rows


def test_every_file_has_its_answers_here():
    assert {file.name for file in FILES.iterdir()} == set(ANSWERS)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_validate_and_worker_read_what_the_file_says(name: str):
    rows = agreed(source_of(FILES / name))
    assert isinstance(rows, list), rows
    answers = [row["answer"] for row in rows]
    assert answers == ANSWERS[name]
    assert [type(answer) for answer in answers] == [type(answer) for answer in ANSWERS[name]]


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_stream_reads_the_same(name: str):
    streamed = agreed(source_of(FILES / name, streaming=True))
    if name == "06-ragged.jsonl":
        assert f"data.path `{FILES / name}`, row 1: the column `solution` is not in the" in streamed
    else:
        assert streamed == agreed(source_of(FILES / name))


@pytest.mark.parametrize("name", sorted(ANSWERS))
@pytest.mark.parametrize("split", ["test", "validation", "train[", "train[:1]", "train[-1:]"])
def test_splits_are_taken_or_refused_by_both(name: str, split: str):
    found = agreed(source_of(FILES / name, split=split))
    if ":" in split:
        assert len(found) == 1
    else:
        assert f"data.split: got '{split}'" in found


def test_the_gold_of_dates_and_prompts_made_of_them(tmp_path: Path):
    source = source_of(FILES / "10-dates.jsonl", prompt_template="Which weekday is {answer}?")
    prompts = load_prompts(source)
    assert isinstance(prompts, Prompts)
    assert prompts[0].messages == [{"role": "user", "content": "Which weekday is 2024-05-01?"}]


KINDS = ["null", "true", "1e5", "007", "2024-05-01", "", "3.10", 7, 7.5, True, None, [1], -(2**90)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "A.JSON", "a.json.gz"])
def test_a_column_of_mixed_kinds_keeps_each(tmp_path: Path, name: str):
    rows = [{"q": f"{i}?", "answer": kind} for i, kind in enumerate(KINDS)]
    is_list = ".json" in name.lower() and not name.endswith(("jsonl", "ndjson"))
    text = json.dumps(rows) if is_list else "\n".join(map(json.dumps, rows))
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(content)
    for streaming in (False, True):
        source = source_of(tmp_path / name, prompt_template="{q}", streaming=streaming)
        assert [row["answer"] for row in agreed(source)] == KINDS  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", '{"question": "a"}\n{"question": "caf\xe9"}\n', "line 2: the bytes e9 22 7d"),
        ("a.csv", "question,answer\na,1\ncaf\xe9,2\n", "line 3: the bytes e9 2c 32 0a are not UTF"),
        ("a.csv", "question,answer\na,1\nb,2,3\n", "line 3 (row 1): 3 fields, and the header"),
        ("a.csv", "question,answer\na,1\nb\n", "line 3 (row 1): 1 fields, and the header names 2"),
        ("a.tsv", "question\tanswer\n\na\t1\t2\n", "line 3 (row 0): 3 fields"),
        ("a.csv", 'question,answer\n"a\nb",1\n"c,2\n', "line 4: unexpected end of data"),
        ("a.csv", "question,answer,answer\na,1,2\n", "line 1: two columns are named `answer`"),
        ("a.csv", "question,answer\n", "has no rows"),
        ("a.json", '[{"question": "a"}, 3]', "row 1: got int, expected an object of columns"),
        ("a.json", '[{"question": "a"},', "not valid JSON"),
        ("a.jsonl", '{"question": "a"}\n{"question": "\\ud800"}', "line 2: half of a surrogate"),
        ("a.jsonl.gz", '{"question": "a"}', "cannot be read: Not a gzipped file"),
        ("a.jsonl", "", "has no rows"),
        ("a.xlsx", "PK", "got a `.xlsx` file"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_file_that_is_wrong_is_refused_by_both(
    tmp_path: Path, name: str, content: str, expected: str, streaming: bool
):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    source = source_of(tmp_path / name, prompt_template="{question}", streaming=streaming)
    told = agreed(source)
    assert isinstance(told, str)
    assert f"data.path `{tmp_path / name}`" in told
    assert expected in told


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"prompt_column": "text"},
        {"prompt_template": "{prompt}"},
        {"prompt_template": r"{answer} \boxed{}"},
        {"prompt_template": "{nowhere}"},
        {"split": "test"},
        {"max_prompts": 1},
    ],
)
@pytest.mark.parametrize("name", ["10-dates.jsonl", "64-upper.JSONL", "06-ragged.jsonl"])
def test_validate_refuses_what_the_worker_refuses(name: str, keys: dict[str, Any]):
    found = agreed(source_of(FILES / name, **keys))
    assert isinstance(found, list) == (keys in ({}, {"max_prompts": 1}))
