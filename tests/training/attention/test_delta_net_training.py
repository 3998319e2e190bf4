"""A hybrid as a run trains it: loaded from a vision-language checkpoint, sharded, saved."""

import json
import math
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import (
    AutoModelForImageTextToText,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from asyncgrpo.ledger.checkpoint_layout import open_checkpoint
from asyncgrpo.packing.row import build_row
from asyncgrpo.training.loss.loss import LossSettings, policy_loss
from asyncgrpo.training.model.forward import PolicyModel
from asyncgrpo.training.model.row_tensors import RowTensors
from asyncgrpo.training.orders import Train
from asyncgrpo.training.parallel import join_ranks, leave_ranks
from asyncgrpo.training.trainer import Trainer
from tests import warm
from tests.training import sharded_step
from tests.training.attention.test_delta_net import HYBRID, VISION, remembering
from tests.training.fixtures import VOCAB, add_tokenizer, resolved
from tests.training.scripted_worker import make_group
from tests.training.test_checkpoint import save


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision-language checkpoint, whose text is what trains."""
    torch.manual_seed(7)
    text = HYBRID | {"vocab_size": VOCAB, "initializer_range": 0.1}
    config = Qwen3_5Config(
        text_config=text, vision_config=VISION, image_token_id=60, video_token_id=61,
        vision_start_token_id=62, vision_end_token_id=63,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    remembering(Qwen3_5ForConditionalGeneration(config)).save_pretrained(folder)
    return add_tokenizer(folder)


@pytest.fixture(scope="module")
def ranks():
    yield join_ranks(use_gpu=False, timeout_s=60)
    leave_ranks()


def names_in(folder: Path) -> dict[str, list[int]]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def text_names(model: Path) -> dict[str, list[int]]:
    return {name: shape for name, shape in names_in(model).items() if ".visual." not in name}


def plain_gradients(model: Path, run_dir: Path) -> dict[str, torch.Tensor]:
    """Of both rows, unsharded and without checkpointing."""
    settings = LossSettings.from_config(resolved(model, run_dir).loss)
    plain = AutoModelForImageTextToText.from_pretrained(model, dtype="float32")
    policy = PolicyModel(plain)
    rows = [build_row(make_group(0, position).samples) for position in range(2)]
    denominator = float(sum(row.term_target_T.size for row in rows))
    total = torch.zeros(())
    for row in rows:
        tensors = RowTensors.from_row(row, "cpu")
        loss, _ = policy_loss(policy(tensors), tensors, settings, denominator)
        loss.backward()
        total += loss.detach()
    trained = {
        name: cast("torch.Tensor", p.grad)
        for name, p in plain.named_parameters()
        if ".visual." not in name
    }
    return {"loss": total} | trained


def test_two_shards_give_the_gradients_of_the_whole(model: Path, tmp_path: Path):
    warm.run_ranks(2, "tests.training.sharded_step", str(tmp_path / "found"), str(model), "own")
    found, expected = load_file(tmp_path / "found.safetensors"), plain_gradients(model, tmp_path)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    published = json.loads((tmp_path / "found.json").read_text())
    assert published == text_names(model)


def test_bfloat16_gradients_point_the_same_way(model: Path, ranks, tmp_path: Path):
    sharded_step.run(tmp_path / "found", model, torch.bfloat16, ranks)
    found, expected = load_file(tmp_path / "found.safetensors"), plain_gradients(model, tmp_path)
    for name, gradient in expected.items():
        if name != "loss":
            cosine = torch.cosine_similarity(found[name].flatten(), gradient.flatten(), dim=0)
            assert found[name].dtype == torch.float32
            assert cosine > 0.99, (name, cosine)


def test_a_run_trains_all_of_its_text_and_saves_it_under_its_names(
    model: Path, ranks, tmp_path: Path
):
    trainer = Trainer(resolved(model, tmp_path), ranks, None)
    assert isinstance(trainer.policy.model, Qwen3_5ForConditionalGeneration)
    before = {name: tensor.clone() for name, tensor in trainer.policy.model.state_dict().items()}
    row = build_row(make_group(0, 0).samples)
    trainer._train(Train(row, float(row.term_target_T.size), 0))
    loss, norm = trainer._apply_gradient(1.0)
    assert math.isfinite(loss)
    assert norm > 0
    after = trainer.policy.model.state_dict()
    same = {name for name, tensor in before.items() if torch.equal(tensor, after[name])}
    assert same == {name for name in before if ".visual." in name}

    trainer.step = 1
    saved = save(trainer, tmp_path / "checkpoints")
    assert names_in(saved) == names_in(model)  # the tower as it was
    resumed = Trainer(resolved(model, tmp_path), ranks, open_checkpoint(saved))
    tensors = RowTensors.from_row(row, "cpu")
    scores = (each.policy.scorer.eval()(tensors).logprob_T for each in (resumed, trainer))
    torch.testing.assert_close(*scores, atol=0, rtol=0)
