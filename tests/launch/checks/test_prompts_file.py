"""Wrong prompts are reported before a server starts."""

import json
from pathlib import Path

import pytest

from asyncgrpo.config.sections.data import DataSource
from asyncgrpo.errors import DataError
from asyncgrpo.launch.checks import prompts_file
from asyncgrpo.launch.checks.prompts_file import Look
from asyncgrpo.rollout.data.prompts import load_prompts

CONVERSATION = [{"role": "user", "content": "What is 1 + 1?"}]


def told(folder: Path, *rows: object, name: str = "rows.jsonl", **keys) -> str | None:
    file = folder / name
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return prompts_file.look(DataSource(path=str(file), **keys)).problem


def test_conversations_and_templates_pass(tmp_path: Path):
    assert told(tmp_path, {"prompt": CONVERSATION}, {"prompt": CONVERSATION, "a": 1}) is None
    assert told(tmp_path, {"q": "1 + 1"}, prompt_template="What is {q}?") is None


@pytest.mark.parametrize(
    ("row", "keys", "expected"),
    [
        ({"question": "?"}, {}, "has no column `prompt`; it has `question`"),
        ({"prompt": "What is 1 + 1?"}, {}, "rows.jsonl`: row 1: column `prompt` holds"),
        ({"prompt": []}, {}, "row 1: column `prompt` is an empty list"),
        ({"prompt": CONVERSATION}, {"prompt_template": "{text}"}, "names the column `text`"),
        ({"completions": 1, "prompt": CONVERSATION}, {}, "column `completions` collides"),
        (["prompt"], {}, "line 2: got list, expected an object of columns"),
    ],
)
def test_what_the_worker_would_refuse_is_told(tmp_path: Path, row, keys: dict, expected: str):
    first = {"question": "?"} if row == {"question": "?"} else {"prompt": CONVERSATION}
    assert expected in str(told(tmp_path, first, row, **keys))


def test_a_line_that_is_not_json_is_named(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": []}\n\n{"prompt": [}\n')
    found = prompts_file.look(DataSource(path=str(file))).problem
    assert f"`{file}`, line 3: not valid JSON" in str(found)


def test_no_rows_are_no_prompts(tmp_path: Path):
    assert "has no rows" in str(told(tmp_path))


def test_what_takes_long_to_read_is_left_to_the_worker(tmp_path: Path, monkeypatch):
    assert prompts_file.look(DataSource(path="org/data")) == Look()
    assert prompts_file.look(DataSource()) == Look()
    monkeypatch.setattr(prompts_file, "LARGEST_BYTES", 3)
    assert told(tmp_path, {"question": "?"}) is None


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("rows.txt", {}, "got a `.txt` file, expected .jsonl, .ndjson, .json, .csv, .tsv, .parq"),
        ("rows.jsonl", {"split": "test"}, "data.split: got 'test', and the one file"),
        ("rows.jsonl", {"split": "test[:5]"}, "data.split: got 'test[:5]', and the one file"),
        ("rows.jsonl", {"split": "train[5"}, "data.split: got 'train[5', expected the name"),
        ("rows.jsonl", {"prompt_template": r"\boxed{}"}, r"`\boxed{}` is written `\boxed{{}}`"),
    ],
)
@pytest.mark.parametrize("largest", [1, 2**20])
def test_what_needs_no_reading_is_told_of_large_files_too(
    tmp_path: Path, monkeypatch, name: str, keys: dict, expected: str, largest: int
):
    monkeypatch.setattr(prompts_file, "LARGEST_BYTES", largest)
    assert expected in str(told(tmp_path, {"prompt": CONVERSATION}, name=name, **keys))
    with pytest.raises(DataError):
        load_prompts(DataSource(path=str(tmp_path / name), **keys))


def test_a_slice_without_rows_is_told(tmp_path: Path):
    assert "has no rows" in str(told(tmp_path, {"prompt": CONVERSATION}, split="train[5:]"))


def test_a_template_for_a_dataset_of_the_hub_is_looked_at():
    source = DataSource(path="org/data", prompt_template=r"{q} \boxed{}")
    assert r"`\boxed{{}}`" in str(prompts_file.look(source).problem)


def test_the_columns_of_each_format_are_those_that_the_worker_gives_rewards(tmp_path: Path):
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"prompt": CONVERSATION, "answer": "2"}, {"prompt": CONVERSATION, "answer": "3"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.json", "lines.json", "a.parquet"):
        looked = prompts_file.look(DataSource(path=str(tmp_path / name)))
        assert (looked.problem, looked.reward_columns) == (None, ("answer",)), name
        assert [prompt.messages for prompt in looked.first] == [CONVERSATION] * 2
        sliced = prompts_file.look(DataSource(path=str(tmp_path / name), split="train[:1]"))
        assert (sliced.reward_columns, len(sliced.first)) == (("answer",), 1), name


def test_a_csv_is_looked_at_through_its_template(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_text("question,answer\n1 + 1,2\n")
    source = DataSource(path=str(file), prompt_template="{question}")
    assert prompts_file.look(source).reward_columns == ("question", "answer")
    wrong = prompts_file.look(DataSource(path=str(file), prompt_template="{text}"))
    assert "names the column `text`" in str(wrong.problem)
    assert "has no column `prompt`" in str(prompts_file.look(DataSource(path=str(file))).problem)


def test_a_damaged_parquet_file_is_named(tmp_path: Path):
    file = tmp_path / "a.parquet"
    file.write_bytes(b"PAR1 not quite")
    assert f"`{file}` cannot be read" in str(prompts_file.look(DataSource(path=str(file))).problem)
