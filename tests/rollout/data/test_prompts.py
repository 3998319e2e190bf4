"""Prompts: the row at each position, and the errors of rows that are no prompt."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.config.sections.data import DataConfig
from asyncgrpo.errors import DataError
from asyncgrpo.rollout.data.prompts import Prompts, load_prompts, permutation
from asyncgrpo.rollout.data.row_mapping import template_columns

USER = [{"role": "user", "content": "hi"}]


class Rows:
    """A table in memory."""

    def __init__(self, *rows):
        self._rows = rows

    @property
    def column_names(self):
        return list(self._rows[0]) if self._rows else []

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, row_index):
        return self._rows[row_index]


def source(**fields):
    return DataConfig(path="data.jsonl", **fields)


def refused(rows, **fields):
    with pytest.raises(DataError) as caught:
        Prompts(Rows(*rows), source(**fields))
    return str(caught.value)


def test_a_conversation_and_its_other_columns():
    prompts = Prompts(Rows({"prompt": USER, "answer": "3", "level": 2}), source())
    prompt = prompts[0]
    assert prompt.messages == USER
    assert prompt.columns == {"answer": "3", "level": 2}
    assert prompt.row["prompt"] == USER
    assert prompts.column_names == ["answer", "level"]


def test_plain_columns_through_a_template_and_a_system_prompt():
    row = {"a": 3, "b": 4, "answer": "7"}
    fields = {"prompt_template": r"{a} + {b}? In \boxed{{}}.", "system_prompt": "Be brief."}
    prompt = Prompts(Rows(row), source(**fields))[0]
    assert prompt.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": r"3 + 4? In \boxed{}."},
    ]
    assert prompt.columns == row


def test_a_prompt_that_brings_its_own_system_message_keeps_it():
    messages = [{"role": "system", "content": "own"}, *USER]
    prompts = Prompts(Rows({"prompt": messages}), source(system_prompt="other"))
    assert prompts[0].messages == messages


def test_keys_that_only_other_rows_have_are_left_out():
    # Arrow gives every message the union of all keys, empty where a row has none.
    message = {"role": "user", "content": "hi", "tool_calls": None}
    assert Prompts(Rows({"prompt": [message]}), source())[0].messages == USER


def test_a_missing_column_is_named_with_those_there_are():
    message = refused([{"question": "q", "answer": "a"}])
    assert "no column `prompt`" in message
    assert "`question`, `answer`" in message
    assert "data.prompt_template" in message


def test_a_text_where_a_conversation_is_expected_names_row_and_column():
    message = refused([{"prompt": USER}, {"prompt": "What is 1 + 1?"}])
    assert message.startswith("row 1: column `prompt` holds 'What is 1 + 1?'")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "row 0: column `prompt` is an empty list"),
        (["hi"], "row 0: column `prompt`: message 0 is 'hi'"),
        ([*USER, {"content": "x"}], "message 1 is {'content': 'x'}"),
        ([{"role": "user"}], "expected an object with `role` and `content`"),
        ([{"role": "user", "content": 5}], "`content`, which are text"),
        ([{"role": 5, "content": "x"}], "`content`, which are text"),
        (None, "holds None"),
    ],
)
def test_other_prompts_that_are_none(value, message):
    assert message in refused([{"prompt": value}])


def test_a_row_that_cannot_be_read_is_named():
    class Damaged(Rows):
        def __getitem__(self, row_index):
            if row_index == 1:
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
            return super().__getitem__(row_index)

    with pytest.raises(DataError, match="row 1 cannot be read: UnicodeDecodeError: 'utf-8' codec"):
        Prompts(Damaged({"prompt": USER}, {"prompt": USER}), source())


@pytest.mark.parametrize(
    ("template", "row", "message"),
    [
        ("{a}", {"a": None}, "row 0: column `a` is empty, and data.prompt_template needs it"),
        ("{a:d}", {"a": "x"}, "row 0: data.prompt_template '{a:d}': Unknown format code 'd'"),
        ("{a!z}", {"a": 1}, "row 0: data.prompt_template '{a!z}': Unknown conversion"),
        ("{a}", {"a": USER}, "a conversation, which data.prompt_template would write out as"),
        ("{a}", {"a": USER}, "leave data.prompt_template out and set data.prompt_column: a"),
        ("{a}", {"a": ["x", "y"]}, "holds ['x', 'y'], which data.prompt_template would write"),
        ("{a}", {"a": {"b": 1}}, "(`{a!s}` takes it as it is)"),
        ("{a}", {"a": " "}, "row 0: data.prompt_template '{a}' gives no text"),
    ],
)
def test_a_row_that_does_not_fit_its_template(template, row, message):
    assert message in refused([row], prompt_template=template)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_empty_file(tmp_path, streaming):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match=r"empty\.jsonl` has no rows; expected at least one"):
        load_prompts(DataConfig(path=str(tmp_path / "empty.jsonl"), streaming=streaming))


def test_an_empty_dataset():
    assert "has no rows" in refused([])


def test_a_column_that_collides_with_a_rewards_keyword():
    assert "`completions` collides" in refused([{"prompt": USER, "completions": 1}])


def test_a_template_that_names_an_unknown_column():
    message = refused([{"question": "q"}], prompt_template="{questoin}")
    assert "data.prompt_template names the column `questoin`" in message
    assert "`question`" in message


@pytest.mark.parametrize("template", ["{}", "{0}", "{a.b}", "{a[0]}", "a}", "{a", r"\boxed{ 1 }"])
def test_a_brace_that_is_no_column(template):
    with pytest.raises(DataError, match="a literal brace written twice"):
        template_columns(template)


@pytest.mark.parametrize("template", [r"{q} In \boxed{}.", r"\boxed{} {q}", r"{q} \text{ a b }"])
def test_a_command_of_latex_is_shown_as_it_must_be_written(template):
    with pytest.raises(DataError) as caught:
        template_columns(template)
    written = str(caught.value).rsplit("is written `", 1)[1].removesuffix("`")
    command = written.replace("{{", "{").replace("}}", "}")
    assert template_columns(template.replace(command, written)) == ["q"]


def test_a_list_goes_into_a_template_that_asks_for_it():
    prompt = Prompts(Rows({"a": ["x"]}), source(prompt_template="{a!s}"))[0]
    assert prompt.messages == [{"role": "user", "content": "['x']"}]


def test_a_message_of_calls_may_have_no_content():
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "content": "3"}
    (_, got, _) = Prompts(Rows({"prompt": [*USER, message, result]}), source())[0].messages
    assert got == message | {"content": ""}
    assert "message 1 is" in refused([{"prompt": [*USER, message | {"tool_calls": []}]}])


def test_max_prompts_takes_the_first():
    prompts = Prompts(Rows(*({"prompt": USER, "i": i} for i in range(9))), source(max_prompts=4))
    assert len(prompts) == 4
    rows = {prompts.at(seed=1, epoch=0, position=p).row_index for p in range(4)}
    assert rows == {0, 1, 2, 3}


def test_without_shuffle_the_order_is_the_datasets():
    prompts = Prompts(Rows(*({"prompt": USER} for _ in range(5))), source(shuffle=False))
    assert prompts.order(seed=7, epoch=3).tolist() == [0, 1, 2, 3, 4]


@given(st.integers(1, 300), st.integers(), st.integers(0, 1000))
def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch_only(size, seed, epoch):
    order = permutation(size, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(size))
    np.testing.assert_array_equal(order, permutation(size, seed=seed, epoch=epoch))


def test_epochs_and_seeds_give_other_orders():
    orders = {permutation(50, seed=s, epoch=e).tobytes() for s in range(5) for e in range(5)}
    assert len(orders) == 25


def test_the_permutation_stays_what_it_is():
    # A changed rule would make a resumed run repeat and skip prompts.
    assert permutation(8, seed=42, epoch=1).tolist() == PERMUTATION


PERMUTATION = [0, 4, 6, 1, 2, 7, 3, 5]

ROWS = [{"prompt": USER, "answer": str(i)} for i in range(3)]


def test_jsonl_json_parquet_and_a_folder_of_them(tmp_path):
    datasets = pytest.importorskip("datasets")
    jsonl, as_json = tmp_path / "a.jsonl", tmp_path / "a.json"
    jsonl.write_text("\n".join(map(json.dumps, ROWS)))
    as_json.write_text(json.dumps(ROWS))
    table = datasets.Dataset.from_list(ROWS)
    (tmp_path / "files").mkdir()
    table.to_parquet(tmp_path / "files" / "train.parquet")
    table.save_to_disk(str(tmp_path / "saved"))
    paths = [jsonl, as_json, tmp_path / "files" / "train.parquet", tmp_path / "files"]
    for path in [*paths, tmp_path / "saved"]:
        prompts = load_prompts(DataConfig(path=str(path)))
        assert isinstance(prompts, Prompts)
        assert [prompts[i].columns["answer"] for i in range(3)] == ["0", "1", "2"], path
        assert prompts[0].messages == USER


def test_a_saved_dataset_has_no_splits(tmp_path):
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match=r"data\.split: got 'train\[:2\]'.*without splits"):
        load_prompts(DataConfig(path=str(tmp_path / "saved"), split="train[:2]"))


def test_csv_through_a_template(tmp_path):
    (tmp_path / "a.csv").write_text("question,answer\n1 + 1,2\n2 + 2,4\n")
    data = DataConfig(path=str(tmp_path / "a.csv"), prompt_template="{question} = ?")
    prompts = load_prompts(data)
    assert isinstance(prompts, Prompts)
    assert prompts[1].messages == [{"role": "user", "content": "2 + 2 = ?"}]
    assert prompts[1].columns == {"question": "2 + 2", "answer": "4"}


def test_a_slice_of_the_split(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    assert len(load_prompts(DataConfig(path=str(tmp_path / "a.jsonl"), split="train[:2]"))) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.jsonl", None, "no file or folder"),
        ("a.txt", "x", "got a `.txt` file, expected .json"),
        ("a.jsonl", "not json", "line 1: not valid JSON"),
        ("empty", "folder", "has no file of json, jsonl, csv, tsv or parquet"),
    ],
)
def test_data_that_cannot_be_read(tmp_path, name, content, message):
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_prompts(DataConfig(path=str(path)))


def test_an_unknown_split(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ROWS[0]))
    with pytest.raises(DataError, match="got 'tset', and the one file"):
        load_prompts(DataConfig(path=str(tmp_path / "a.jsonl"), split="tset"))


def test_no_path():
    with pytest.raises(DataError, match=r"data.path is not set"):
        load_prompts(DataConfig())


def test_files_of_text_in_a_folder_are_read_by_split_as_they_are_written(tmp_path):
    rows = [{"q": "2024-05-01", "answer": "007"}, {"q": "null", "answer": 2**70}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "test.jsonl").write_text(json.dumps({"q": "other", "answer": "1e5"}))
    for split, expected in (("train", rows), ("train[1:]", rows[1:]), ("test", ["1e5"])):
        source = DataConfig(path=str(tmp_path), prompt_template="{q}", split=split)
        prompts = load_prompts(source)
        assert isinstance(prompts, Prompts)
        got = [prompts[i].columns for i in range(len(prompts))]
        assert got == (expected if split != "test" else [{"q": "other", "answer": "1e5"}])
    with pytest.raises(DataError, match=r"got 'dev', and `.*` has `train`, `test`"):
        load_prompts(DataConfig(path=str(tmp_path), prompt_template="{q}", split="dev"))


def test_parquet_keeps_its_types(tmp_path):
    import datetime

    import pyarrow as pa
    from pyarrow import parquet

    day = datetime.date(2024, 5, 1)
    rows = [{"q": "a", "day": day, "text": "007"}, {"q": "b", "day": None, "text": "null"}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.PARQUET")
    source = DataConfig(path=str(tmp_path / "a.PARQUET"), prompt_template="{q}", split="train[:1]")
    prompts = load_prompts(source)
    assert isinstance(prompts, Prompts)
    assert [prompts[i].columns for i in range(len(prompts))] == rows[:1]
