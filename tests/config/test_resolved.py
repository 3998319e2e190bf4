"""`config.json`: written once, read by every process, and the start of a resumed run."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from asyncgrpo.config import Facts, derive, load_resolved, reload, resolve, write_resolved
from asyncgrpo.errors import CheckpointError, ConfigError
from tests.config.recipe_files import load
from tests.config.test_derive import some_configs, some_facts


@given(some_configs, some_facts)
def test_what_was_written_is_read_back(tmp_path_factory, config, facts):
    file = tmp_path_factory.mktemp("run") / "config.json"
    result = derive(config, facts)
    write_resolved(file, result.config, result.derived)
    assert load_resolved(file) == load_resolved(file.parent) == result.config


def test_records_and_mappings_are_read_back(tmp_path: Path):
    config = load(
        tmp_path,
        "rollout.rewards=[{path: a:f, kwargs: {x: [1, {y: 2.5}]}}]",
        "model.peft={rank_pattern: {'layers.0': 4}, target_modules: [q_proj]}",
        "rollout.chat_template_kwargs={enable_thinking: false}",
        "trainer.devices=[0, 1]",
    ).config
    write_resolved(tmp_path / "config.json", config)
    assert load_resolved(tmp_path) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "not found"),
        ("{", "cannot be read"),
        ("[]", "no `config`"),
        ('{"config": {}, "derived": {}}', "not a configuration of this version"),
    ],
)
def test_a_run_directory_without_a_configuration_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_resolved(tmp_path)


DEMO = Facts(recipe_name="demo", working_dir="/w")


def resolved_run(tmp_path: Path, *overrides: str, facts: Facts = DEMO):
    recipe = load(tmp_path, *overrides)
    result = resolve(recipe, facts)
    run_dir = tmp_path / "run"
    run_dir.mkdir(exist_ok=True)
    write_resolved(run_dir / "config.json", result.config, result.derived)
    return recipe, result, run_dir


def test_reloading_opens_what_was_derived_but_the_run_stays_where_it_is(tmp_path: Path):
    facts = Facts(
        recipe_name="demo",
        working_dir="/w",
        model_max_positions=4096,
        server_urls=("http://127.0.0.1:1",),
    )
    _, result, run_dir = resolved_run(tmp_path, facts=facts)
    again = reload(run_dir, ["loss.epsilon=0.1", "rollout.max_staleness=1"])
    assert again.config.server.urls is None
    assert again.config.run == result.config.run
    second = resolve(again, Facts(recipe_name="other", working_dir="/elsewhere")).config
    assert (second.loss.epsilon_high, second.sync.keep_versions) == (0.1, 2)
    assert second.run.dir == "/w/runs/demo"
    assert second.sync.path == "/w/runs/demo/served"


def test_a_run_that_was_moved_publishes_where_it_is_now(tmp_path: Path):
    _, _, run_dir = resolved_run(tmp_path)
    moved = resolve(reload(run_dir, ["run.dir=/new/place"]), DEMO).config
    assert moved.sync.path == "/new/place/served"
    _, _, run_dir = resolved_run(tmp_path, "sync.path=/shared/served")
    moved = resolve(reload(run_dir, ["run.dir=/new/place"]), DEMO).config
    assert moved.sync.path == "/shared/served"


def test_reloading_without_overrides_resolves_to_the_same(tmp_path: Path):
    facts = Facts(recipe_name="demo", working_dir="/w", cuda_count=3, model_dtype="bfloat16")
    _, result, run_dir = resolved_run(
        tmp_path, "model.dtype=auto", "model.peft={r: 4}", "server.env={A: b}", facts=facts
    )
    assert resolve(reload(run_dir), facts).config == result.config


def test_an_override_of_a_resumed_run_is_checked(tmp_path: Path):
    _, _, run_dir = resolved_run(tmp_path)
    with pytest.raises(ConfigError) as error:
        reload(run_dir, ["loss.epsilom=1", "trainer.lr_scheduler_type=linear"])
    assert "override 'loss.epsilom=1'  loss.epsilom: unknown key" in str(error.value)
    assert "trainer.max_steps: missing; trainer.lr_scheduler_type = linear" in str(error.value)


def test_why_each_value_was_derived_is_written_down(tmp_path: Path):
    _, result, run_dir = resolved_run(tmp_path)
    document = json.loads((run_dir / "config.json").read_text())
    assert document["derived"]["sync.backend"] == "the whole model is trained"
    assert set(document["derived"]) == {item.key for item in result.derived}
