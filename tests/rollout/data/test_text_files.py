"""Files of text: every value as it is written."""

import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.text_files import TextStream, TextTable, read_rows, read_table

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
VALUE = st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2)


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUE, min_size=1), min_size=1))
def test_json_gives_back_what_json_was_given(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("json")
    lines = written(folder, "a.jsonl", "\n".join(map(json.dumps, rows)))
    whole = written(folder, "a.json", json.dumps(rows, ensure_ascii=False))
    assert list(read_rows(lines)) == list(read_rows(whole)) == rows


@given(st.lists(st.tuples(CELL, CELL), min_size=1), st.sampled_from(["csv", "tsv"]))
def test_cells_are_the_texts_that_were_written(tmp_path_factory, records, form):
    file = tmp_path_factory.mktemp(form) / f"a.{form}"
    with file.open("w", newline="", encoding="utf-8-sig") as out:
        writer = csv.writer(out, "excel" if form == "csv" else "excel-tab")
        writer.writerows([("q", "answer"), *records])
    assert [tuple(row.values()) for row in read_rows(file)] == records
    assert read_table([file]).column_names == ["q", "answer"]


def test_a_cell_may_be_long_and_an_index_has_no_name(tmp_path: Path):
    long = "x" * 200_000
    file = written(tmp_path, "a.csv", f",answer\n0,{long}\n")
    assert list(read_rows(file)) == [{"Unnamed: 0": "0", "answer": long}]


def test_a_json_file_of_lines_and_one_of_a_single_row(tmp_path: Path):
    assert len(list(read_rows(written(tmp_path, "a.json", '{"a": 1}\n{"a": 2}\n')))) == 2
    assert list(read_rows(written(tmp_path, "b.json", '{"a":\n 1}'))) == [{"a": 1}]
    assert list(read_rows(written(tmp_path, "c.json", " \n"))) == []


def test_a_byte_order_mark_is_skipped_and_utf16_is_named(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}')
    assert list(read_rows(file)) == [{"a": 1}, {"a": 2}]
    file.write_text('{"a": 1}', encoding="utf-16")
    with pytest.raises(DataError, match="line 1: the bytes ff fe 7b 00 are not UTF-8"):
        list(read_rows(file))


def test_a_damaged_gzip_file_is_named(tmp_path: Path):
    file = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(b'{"a": 1}\n' * 1000)
    file.write_bytes(whole[:-12])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz` cannot be read: Compressed file ended"):
        list(read_rows(file))
    file.write_bytes(whole[:15] + b"\xff\xff\xff" + whole[18:])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz` cannot be read"):
        list(read_rows(file))


def test_a_row_that_is_changed_changes_no_other_look():
    table = TextTable([{"prompt": [{"role": "user"}]}], ["prompt", "answer"])
    table[0]["prompt"][0]["role"] = "changed"
    table[0]["prompt"].clear()
    assert table[0] == {"prompt": [{"role": "user"}], "answer": None}


def test_files_one_after_the_other_are_one_table_and_one_stream(tmp_path: Path):
    first = written(tmp_path, "a.jsonl", '{"a": 1, "b": "x"}\n')
    second = written(tmp_path, "b.csv", "a\n2\n")
    table, stream = read_table([first, second]), TextStream([first, second])
    rows = [{"a": 1, "b": "x"}, {"a": "2", "b": None}]
    assert [table[i] for i in range(2)] == rows
    assert list(stream) == list(stream) == rows
