"""Making the real model's directories: once, and never half."""

import pytest

from recipes.smollm2 import make_model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(make_model, "ROOT", tmp_path)
    return tmp_path / "model"


def write(directory):
    directory.mkdir()
    (directory / "weights").write_text("whole")


def fail_half_way(directory):
    directory.mkdir()
    (directory / "weights").write_text("half")
    raise ConnectionError


def test_what_is_there_is_not_made_again(folder, capsys):
    make_model.make_once(folder, write)
    assert (folder / "weights").read_text() == "whole"
    make_model.make_once(folder, fail_half_way)
    assert capsys.readouterr().out.splitlines() == [
        "wrote model",
        "model is there already; delete it to make it again",
    ]


def test_an_interrupted_one_is_made_again_from_the_start(folder):
    with pytest.raises(ConnectionError):
        make_model.make_once(folder, fail_half_way)
    assert not folder.exists()
    make_model.make_once(folder, write)
    assert (folder / "weights").read_text() == "whole"
    assert list(folder.parent.iterdir()) == [folder]
