"""A checkpoint is whole, loads elsewhere, and training goes on from it as if nothing happened."""

import json
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncgrpo.errors import CheckpointError, ConfigError, RunError
from asyncgrpo.ledger.checkpoint_layout import (
    Checkpoint,
    TrainerState,
    checkpoint_path,
    checkpoints_of,
    choose_checkpoint,
    open_checkpoint,
)
from asyncgrpo.ledger.run_end import reached_end
from asyncgrpo.ledger.states import Ledger
from asyncgrpo.packing.row import build_row
from asyncgrpo.training.checkpoint import gather, write_checkpoint
from asyncgrpo.training.model.model import load_policy
from asyncgrpo.training.orders import Train
from asyncgrpo.training.parallel import Ranks, join_ranks, leave_ranks
from asyncgrpo.training.trainer import Trainer, refuse_another_order
from tests.training.fixtures import make_model, resolved
from tests.training.scripted_worker import make_group


def chosen(run_dir: Path, step: int | None = None) -> Checkpoint | None:
    """The checkpoint that the trainer goes on from."""
    return choose_checkpoint(checkpoints_of(run_dir), step, lambda _: None)


LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "lora_dropout": 0.1}


@pytest.fixture(scope="module")
def ranks():
    yield join_ranks(use_gpu=False, timeout_s=60)
    leave_ranks()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def take_step(trainer: Trainer) -> tuple[float, float]:
    row = build_row(make_group(0, trainer.step).samples)
    trainer._seed()
    trainer._rates.apply(trainer.optimizer, trainer.step)
    trainer._train(Train(row, float(row.term_target_T.size), 0))
    result = trainer._apply_gradient(1.0)
    trainer.step += 1
    return result


def save(trainer: Trainer, directory: Path) -> Path:
    contents = gather(trainer.policy, trainer.optimizer)
    config = trainer.config
    return write_checkpoint(
        directory,
        contents,
        policy=trainer.policy,
        tokenizer=trainer.tokenizer,
        state=Ledger(10).state(step=trainer.step, policy_version=3, seed=42),
        trainer=TrainerState(trainer.step, 99, 1.0, config.trainer.optim, contents.scalars),
    )


@pytest.mark.parametrize("peft", [None, LORA, LORA | {"modules_to_save": ("norm",)}])
@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adafactor", "sgd"])
def test_training_goes_on_as_if_nothing_had_happened(
    model: Path, tmp_path: Path, ranks: Ranks, peft, optim: str
):
    trainer_leaves = {"optim": optim, "lr_scheduler_type": "linear", "max_steps": 6}
    config = resolved(model, tmp_path, model={"peft": peft}, trainer=trainer_leaves)
    straight = Trainer(config, ranks, None)
    for _ in range(2):
        take_step(straight)
    path = save(straight, tmp_path / "checkpoints")
    expected = [take_step(straight) for _ in range(2)]

    resumed = Trainer(config, ranks, open_checkpoint(path))
    assert resumed.step == 2
    assert [take_step(resumed) for _ in range(2)] == expected
    for (name, a), b in zip(
        straight.policy.scorer.named_parameters(),
        resumed.policy.scorer.parameters(),
        strict=True,
    ):
        assert torch.equal(a, b), name


def test_an_override_of_a_resumed_run_counts(model: Path, tmp_path: Path, ranks: Ranks):
    first = Trainer(resolved(model, tmp_path), ranks, None)
    take_step(first)
    path = save(first, tmp_path / "checkpoints")
    leaves = {"learning_rate": 0.5, "weight_decay": 0.25}
    resumed = Trainer(resolved(model, tmp_path, trainer=leaves), ranks, open_checkpoint(path))
    take_step(resumed)
    assert {group["lr"] for group in resumed.optimizer.param_groups} == {0.5}
    assert {group["weight_decay"] for group in resumed.optimizer.param_groups} == {0.25, 0.0}


def test_an_override_of_the_adapter_counts_or_is_refused(model: Path, tmp_path: Path, ranks: Ranks):
    first = Trainer(resolved(model, tmp_path, model={"peft": LORA}), ranks, None)
    take_step(first)
    checkpoint = open_checkpoint(save(first, tmp_path / "checkpoints"))
    for override in ({"r": 8}, {"target_modules": ("q_proj",)}, {"modules_to_save": ("norm",)}):
        config = resolved(model, tmp_path, model={"peft": LORA | override})
        with pytest.raises(CheckpointError, match=r"not the one that model\.peft describes"):
            Trainer(config, ranks, checkpoint)
    config = resolved(model, tmp_path, model={"peft": LORA | {"lora_dropout": 0.0}})
    dropouts = {
        module.p
        for name, module in Trainer(config, ranks, checkpoint).policy.model.named_modules()
        if "lora_dropout.default" in name and isinstance(module, torch.nn.Dropout)
    }
    assert dropouts <= {0.0}


def test_a_checkpoint_before_the_first_sound_step_resumes(
    model: Path, tmp_path: Path, ranks: Ranks
):
    first = Trainer(resolved(model, tmp_path), ranks, None)
    path = save(first, tmp_path / "checkpoints")
    resumed = Trainer(resolved(model, tmp_path), ranks, open_checkpoint(path))
    assert take_step(resumed) == take_step(first)


def test_another_optimizer_starts_from_nothing_and_says_so(
    model: Path, tmp_path: Path, ranks: Ranks, caplog: pytest.LogCaptureFixture
):
    first = Trainer(resolved(model, tmp_path), ranks, None)
    take_step(first)
    checkpoint = open_checkpoint(save(first, tmp_path / "checkpoints"))
    config = resolved(model, tmp_path, trainer={"optim": "sgd"})
    assert not Trainer(config, ranks, checkpoint).optimizer.state
    assert "trainer.optim is sgd" in caplog.text


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_the_model_of_a_checkpoint(tmp_path: Path, ranks: Ranks, tied):
    source = make_model(tmp_path / "model", tied=tied)
    trainer = Trainer(resolved(source, tmp_path), ranks, None)
    take_step(trainer)
    path = save(trainer, tmp_path / "checkpoints")
    loaded = AutoModelForCausalLM.from_pretrained(path)
    for name, weight in trainer.policy.model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
    assert len(AutoTokenizer.from_pretrained(path)) == 64
    assert loaded.config._attn_implementation != "asyncgrpo_tree"


SAMPLING = [
    {"top_p": 0.9},
    {"temperature": 0.6, "top_k": 20},
    {"num_beams": 1, "early_stopping": 1},
]


@pytest.mark.parametrize("values", SAMPLING)
def test_a_checkpoint_hands_on_the_models_own_generation_config(
    tmp_path: Path, ranks: Ranks, values
):
    """Values without `do_sample`, as many published models have them, which nobody may save."""
    model = make_model(tmp_path / "model")
    content = json.dumps({"eos_token_id": 1} | values).encode() + b"  \n"
    (model / "generation_config.json").write_bytes(content)
    trainer = Trainer(resolved(model, tmp_path), ranks, None)
    take_step(trainer)
    path = save(trainer, tmp_path / "checkpoints")
    assert (path / "generation_config.json").read_bytes() == content
    resumed = Trainer(resolved(model, tmp_path), ranks, open_checkpoint(path))
    again = save(resumed, tmp_path / "more")
    assert (again / "generation_config.json").read_bytes() == content
    AutoModelForCausalLM.from_pretrained(path)


@pytest.mark.parametrize("peft", [None, LORA])
def test_what_cannot_be_saved_is_told_before_the_first_step(
    model: Path, tmp_path: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, peft
):
    def refuse(*_, **__):
        raise ValueError("this tokenizer has no form on disk")

    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.save_pretrained", refuse)
    with pytest.raises(ConfigError, match=r"no checkpoint .* no form on disk"):
        Trainer(resolved(model, tmp_path, model={"peft": peft}), ranks, None)
    assert not list(tmp_path.glob(".rehearsal*"))


def test_peft_loads_the_adapter_of_a_checkpoint(model: Path, tmp_path: Path, ranks: Ranks):
    config = resolved(model, tmp_path, model={"peft": LORA})
    trainer = Trainer(config, ranks, None)
    take_step(trainer)
    path = save(trainer, tmp_path / "checkpoints")
    base = AutoModelForCausalLM.from_pretrained(model)
    loaded = PeftModel.from_pretrained(base, path).eval()
    trainer.policy.model.eval()
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        theirs = torch.log_softmax(loaded(ids).logits, -1)[0, :-1]
    theirs = theirs.gather(1, ids[0, 1:, None])[:, 0]
    ours = trainer.policy.scorer.sequence_logprobs(ids[0].tolist())
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_adafactor_under_mixed_precision_is_refused(model: Path, tmp_path: Path, ranks: Ranks):
    config = resolved(model, tmp_path, trainer={"optim": "adafactor", "bf16": True})
    with pytest.raises(ConfigError, match="adafactor works neither"):
        Trainer(config, ranks, None)


def test_another_order_of_the_prompts_is_refused(saved: Path, model: Path):
    checkpoint = chosen(saved)
    refuse_another_order(resolved(model, saved), checkpoint)
    with pytest.raises(CheckpointError, match=r"resume with rollout\.seed=42"):
        refuse_another_order(resolved(model, saved, rollout={"seed": 43}), checkpoint)


@pytest.fixture(scope="module")
def saved(model: Path, tmp_path_factory: pytest.TempPathFactory, ranks: Ranks) -> Path:
    run_dir = tmp_path_factory.mktemp("saved")
    trainer = Trainer(resolved(model, run_dir), ranks, None)
    take_step(trainer)
    save(trainer, run_dir / "checkpoints")
    take_step(trainer)
    save(trainer, run_dir / "checkpoints")
    return run_dir


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("complete.json", None, "complete.json is missing"),
        ("complete.json", b"{", "damaged"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", b"short", "has 5 bytes"),
        ("rollout_state.json", b"x", "rollout_state.json has 1 bytes"),
        ("optimizer.safetensors", None, "optimizer.safetensors is missing"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(saved: Path, tmp_path, name, damage, message):
    path = tmp_path / "checkpoints" / "step-000002"
    shutil.copytree(checkpoint_path(saved / "checkpoints", 2), path)
    (path / name).unlink()
    if damage is not None:
        (path / name).write_bytes(damage)
    with pytest.raises(CheckpointError, match=message):
        chosen(tmp_path, 2)


def test_a_folder_without_its_marker_is_no_checkpoint(saved: Path, tmp_path: Path):
    for step in (1, 2):
        path = checkpoint_path(tmp_path / "checkpoints", step)
        shutil.copytree(checkpoint_path(saved / "checkpoints", step), path)
    (path / "complete.json").unlink()
    assert chosen(tmp_path).state.step == 1


def test_the_newest_is_chosen_unless_another_is_named(saved: Path, tmp_path: Path):
    assert chosen(saved).path.name == "step-000002"
    assert chosen(saved).state.step == 2
    assert chosen(saved, 1).state.step == 1
    assert chosen(tmp_path) is None
    with pytest.raises(CheckpointError, match="no checkpoint of step 7; it has: 1, 2"):
        chosen(saved, 7)


def test_a_full_disk_leaves_the_old_checkpoint_whole(model: Path, tmp_path: Path, ranks: Ranks):
    trainer = Trainer(resolved(model, tmp_path), ranks, None)
    take_step(trainer)
    old = save(trainer, tmp_path / "checkpoints")
    take_step(trainer)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(RunError, match="step 2 cannot be written"):
            save(trainer, tmp_path / "checkpoints")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    open_checkpoint(old)


def test_a_run_at_its_end_is_recognised(saved: Path, model: Path):
    checkpoint = chosen(saved)
    for max_steps, ended in ((2, True), (3, False)):
        config = resolved(model, saved, trainer={"max_steps": max_steps})
        assert bool(reached_end(config, checkpoint.state)) is ended


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"name_or_path": "/nowhere/model"}, "model.name_or_path"),
        ({"peft": {"target_modules": ("lm_head",)}}, "language-model head"),
        ({"peft": {"modules_to_save": ("lm_head",)}}, "language-model head"),
        ({"peft": {"target_modules": ("no_such_module",)}}, "target_modules"),
        ({"peft": {"modules_to_save": ("embed_tokens",)}}, "ties the two"),
        ({"peft": {"target_modules": ("embed_tokens", "q_proj")}}, "ties the two"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_key(model: Path, tmp_path, leaves, message):
    config = resolved(model, tmp_path, model=leaves)
    with pytest.raises(ConfigError, match=message):
        load_policy(config, None, torch.device("cpu"))


def test_the_state_of_a_checkpoint_reads_as_json(saved: Path):
    state = json.loads((checkpoint_path(saved / "checkpoints", 2) / "trainer.json").read_text())
    assert state["step"] == 2
    assert state["num_tokens"] == 99
