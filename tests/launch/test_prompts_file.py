"""The prompts are looked at before a server starts; what is left to the worker is not judged."""

import json
from pathlib import Path

import pytest

from asyncgrpo.config.data import DataSource
from asyncgrpo.launch import prompts_file

CONVERSATION = [{"role": "user", "content": "What is 1 + 1?"}]


def told(folder: Path, *rows: object, name: str = "rows.jsonl", **keys) -> str | None:
    file = folder / name
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return prompts_file.problem(DataSource(path=str(file), **keys))


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
    found = prompts_file.problem(DataSource(path=str(file)))
    assert f"`{file}`, line 3: not valid JSON" in str(found)


def test_no_rows_are_no_prompts(tmp_path: Path):
    assert "has no rows" in str(told(tmp_path))


def test_what_takes_long_to_read_is_left_to_the_worker(tmp_path: Path, monkeypatch):
    assert prompts_file.problem(DataSource(path="org/data")) is None
    assert prompts_file.problem(DataSource()) is None
    assert told(tmp_path, {"question": "?"}, split="train[:1]") is None
    assert told(tmp_path, {"question": "?"}, name="rows.json") is None
    monkeypatch.setattr(prompts_file, "LARGEST_BYTES", 3)
    assert told(tmp_path, {"question": "?"}) is None
