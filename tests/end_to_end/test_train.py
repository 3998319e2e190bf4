"""Whole runs with the real vLLM on CPU: five steps with each back end, then what they wrote."""

import json

import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncgrpo.config import Facts, load_recipe, load_resolved, resolve
from tests.end_to_end.runs import RECIPE, RunDirectory, run
from tests.server.vllm_process import running_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

LORA = "model.peft={r: 8, lora_alpha: 16, target_modules: all-linear}"
FACTS = Facts(recipe_name="sums", working_dir=str(RECIPE.parent))
ALWAYS = (  # of the step itself
    "loss",
    "grad_norm",
    "learning_rate",
    "num_tokens",
    "entropy",
    "sampling/sampling_logp_difference/mean",
    "sampling/importance_sampling_ratio/mean",
    "sampling/masked_mean",
    "sampling/sampler_mass",
    "rollout/queue_size",
    "sample/staleness_mean",
    "batch/forwarded_tokens_per_step",
    "batch/packing_ratio",
    "batch/row_fill_frac",
    "perf/step_s",
    "perf/fwd_bwd_s",
    "perf/rollout_wait_s",
    "ledger/trained_count",
)
# Of what ended meanwhile: a step whose groups all waited in the queue may see none.
WHERE_GROUPS_ARE_SCORED = ("reward", "frac_reward_zero_std")
WHERE_ROLLOUTS_END = ("completions/mean_length", "completions/clipped_ratio")


@pytest.fixture(scope="module", params=["folder", "adapter"])
def trained(request, tmp_path_factory) -> tuple[str, RunDirectory, str]:
    """Five steps; gives the back end, the run directory and what was printed.

    `folder` starts all of its processes from nothing; `adapter` finds its server.
    """
    path = tmp_path_factory.mktemp(request.param) / "run"
    arguments = (str(RECIPE), f"run.dir={path}", f"sync.backend={request.param}")
    if request.param == "folder":
        printed = run("train", *arguments)
    else:
        config = resolve(load_recipe(RECIPE, [*arguments[1:], LORA]), FACTS).config
        with running_vllm(config, path.with_name("server.log"), {}) as url:
            printed = run("train", *arguments, LORA, f"server.urls=[{url}]")
            left = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
            path.with_name("left.json").write_text(json.dumps([model["id"] for model in left]))
    return request.param, RunDirectory(path), printed


def test_every_step_is_logged_with_its_metrics(trained):
    _, directory, _ = trained
    records = directory.metrics
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
    for record in records:
        assert not [name for name in ALWAYS if name not in record], record
    for together in (WHERE_GROUPS_ARE_SCORED, WHERE_ROLLOUTS_END):
        seen = [record for record in records if together[0] in record]
        assert records[0] in seen
        for record in seen:
            assert record.keys() >= set(together), record
    # Gauges are read once a second, and a step may take less.
    assert any("rollout/concurrency_cap" in record for record in records)


def test_the_sampler_and_the_policy_agree_at_staleness_0(trained):
    _, directory, _ = trained
    first = directory.metrics[0]  # every sample of the first step comes from version 0
    assert first["sample/staleness_max"] == 0
    assert first["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-3)
    assert first["sampling/sampling_logp_difference/mean"] <= 1e-4


def test_every_version_was_attested(trained):
    _, directory, _ = trained
    published = [event for event in directory.events if event["event"] == "policy_published"]
    versions = [event["version"] for event in published]
    # At most one for each step: a snapshot that waits is replaced by a newer one.
    assert versions == sorted({*versions})
    assert (versions[0], versions[-1]) == (0, 5)
    assert len(versions) >= 2
    assert directory.state["policy_version"] == versions[-1]
    assert all(event["attest_logp_diff"] < 1e-3 for event in published)
    worst = max(record.get("sync/attest_logp_diff", 0.0) for record in directory.metrics)
    assert 0 < worst < 1e-3


def test_the_checkpoint_loads_with_transformers_or_peft(trained):
    backend, directory, _ = trained
    checkpoint = directory.checkpoint(5)
    if backend == "adapter":
        base = json.loads((checkpoint / "adapter_config.json").read_text())[
            "base_model_name_or_path"
        ]
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), checkpoint)
    else:
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer("What is 3 + 4?", return_tensors="pt")["input_ids"]
    assert torch.isfinite(model(ids).logits).all()


def test_a_server_that_stays_has_no_adapter_of_the_run_left(trained):
    backend, directory, _ = trained
    if backend == "adapter":
        published = [e["policy"] for e in directory.events if e["event"] == "policy_published"]
        assert len({*published}) == len(published)
        left = json.loads(directory.path.with_name("left.json").read_text())
        assert left == [load_resolved(directory.path).model.name_or_path]


def test_the_state_says_where_the_next_run_starts(trained):
    _, directory, _ = trained
    state = directory.state
    assert state["format"] == 1
    assert state["step"] == 5
    resolved = {p for start, end in state["resolved"] for p in range(start, end)}
    assert state["prompt_index"] not in resolved
    assert state["prompt_index"] == 0 or state["prompt_index"] - 1 in resolved


def test_the_end_says_how_the_reward_went_and_what_to_do_next(trained):
    _, directory, printed = trained
    assert "reward" in printed
    assert str(directory.path) in printed
    assert "asyncgrpo " in printed
