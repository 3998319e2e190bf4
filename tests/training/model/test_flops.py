"""FLOPs are those that torch counts where attention computes exactly the keys a token sees."""

import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AttentionInterface,
    DeepseekV3Config,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from asyncgrpo.metrics.values import Recorder
from asyncgrpo.packing.row import build_row
from asyncgrpo.records import Row
from asyncgrpo.training.model.architecture import unwrap_peft
from asyncgrpo.training.model.flops import (
    RowFlops,
    UnknownArchitectureError,
    Utilization,
    count_flops,
    measure_utilization,
)
from asyncgrpo.training.model.model import Policy, load_policy
from asyncgrpo.training.model.peak_rates import RATES, peak_rate, rate_of
from tests.training.fixtures import make_model, resolved
from tests.training.packed_samples import VOCABULARY, tangled_samples, tiny_model

TOKEN_BY_TOKEN = "token_by_token"
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
}
ROTATION = 2e-3  # rotary tables are a small product of their own, which nobody trains


def paths_of(row: Row) -> list[np.ndarray]:
    """The row positions of every token's path, itself last."""
    of_segment: list[np.ndarray] = []
    paths: list[np.ndarray] = []
    for start, length, parent in zip(
        row.segment_start_S, row.segment_length_S, row.segment_parent_S, strict=True
    ):
        before = of_segment[parent] if parent >= 0 else np.empty(0, np.int64)
        whole = np.concatenate([before, np.arange(start, start + length)])
        of_segment.append(whole)
        paths += [whole[: before.size + i + 1] for i in range(length)]
    return paths


@pytest.fixture
def row() -> Row:
    return build_row(tangled_samples())


@pytest.fixture
def token_by_token(row: Row) -> Iterator[None]:
    """Attention that forms no score but those that count."""
    paths = paths_of(row)

    def attend(module, query, key, value, mask, *, scaling, sliding_window=None, **_):
        groups = query.shape[1] // key.shape[1]
        k, v = (x[0].repeat_interleave(groups, 0) for x in (key, value))
        seen = [path if sliding_window is None else path[-sliding_window:] for path in paths]
        output = query.new_zeros(*query.shape[1:3], value.shape[-1])
        for count in {path.size for path in seen}:  # those that see as many keys go together
            at = [i for i, path in enumerate(seen) if path.size == count]
            keys = torch.from_numpy(np.stack([seen[i] for i in at]))
            scores = query[0, :, at, None] @ k[:, keys].transpose(2, 3) * scaling
            attended = (scores.softmax(-1) @ v[:, keys])[:, :, 0]
            output = output.index_copy(1, torch.tensor(at), attended)
        return output.transpose(0, 1)[None], None

    AttentionInterface.register(TOKEN_BY_TOKEN, attend)
    yield
    del AttentionInterface._global_mapping[TOKEN_BY_TOKEN]


def policy_of(model: torch.nn.Module, *layers: torch.nn.Module) -> Policy:
    """The parts whose FLOPs are counted; the layers are the model's own unless given."""
    own = unwrap_peft(model).get_decoder().get_submodule("layers").children()
    return cast("Policy", SimpleNamespace(model=model, layers=layers or tuple(own)))


def measured(model: torch.nn.Module, row: Row) -> int:
    """Forward and backward of the row without packing's attention or the tiled head."""
    causal_lm = unwrap_peft(model)
    causal_lm.set_attn_implementation(TOKEN_BY_TOKEN)
    causal_lm.set_experts_implementation("eager")  # torch does not count the grouped product
    causal_lm.enable_input_require_grads()  # adapters: what the first layer passes back counts
    with FlopCounterMode(display=False) as counter:
        hidden = causal_lm.get_decoder()(
            input_ids=torch.from_numpy(row.input_ids_N).long()[None],
            position_ids=torch.from_numpy(row.position_ids_N).long()[None],
            use_cache=False,
        ).last_hidden_state[0]
        positions = torch.from_numpy(np.unique(row.term_position_T)).long()
        causal_lm.get_output_embeddings()(hidden[positions]).logsumexp(-1).sum().backward()
    return counter.get_total_flops()


MODELS: dict[str, PretrainedConfig] = {
    "grouped queries, tied head": Qwen3Config(**SMALL, tie_word_embeddings=True),
    "a window in one of three layers": Qwen3Config(
        **SMALL,
        use_sliding_window=True,
        sliding_window=7,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "a window in every layer": MistralConfig(**SMALL, sliding_window=5),
    "experts": Qwen3MoeConfig(
        **SMALL, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20
    ),
    "experts, shared ones, latent keys of another size than values": DeepseekV3Config(
        **{k: v for k, v in SMALL.items() if k not in ("head_dim", "num_key_value_heads")},
        num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=3, n_group=2, topk_group=1,
        n_shared_experts=1, moe_intermediate_size=20, first_k_dense_replace=1, q_lora_rank=24,
        kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("token_by_token")
def test_the_count_is_torchs_own(name: str, row: Row):
    model = tiny_model(MODELS[name], torch.float32)
    assert count_flops(policy_of(model)).of_row(row) == pytest.approx(
        measured(model, row), rel=ROTATION
    )


@pytest.mark.usefixtures("token_by_token")
def test_a_frozen_weight_has_no_gradient_to_compute(row: Row):
    whole = tiny_model(MODELS["grouped queries, tied head"], torch.float32)
    full = count_flops(policy_of(whole)).of_row(row)
    lora = get_peft_model(whole, LoraConfig(r=4, target_modules="all-linear"))
    counted = count_flops(policy_of(lora)).of_row(row)
    assert counted == pytest.approx(measured(lora, row), rel=ROTATION)
    assert counted < 0.85 * full


def test_a_row_by_hand():
    flops = RowFlops(per_token=100.0, per_key={None: 10.0, 2: 1.0}, per_position=1000.0)
    row = SimpleNamespace(  # what is counted of a row
        position_ids_N=np.array([0, 1, 2, 2], np.int32),  # keys 1 + 2 + 3 + 3, or 1 + 2 + 2 + 2
        term_position_T=np.array([1, 1, 2], np.int32),  # two positions predict
    )
    assert flops.of_row(cast("Row", row)) == 4 * 100 + 9 * 10 + 7 * 1 + 2 * 1000


def test_sharing_saves_what_is_shared(row: Row):
    model = tiny_model(MODELS["grouped queries, tied head"], torch.float32)
    flops = count_flops(policy_of(model))
    alone = sum(flops.of_row(build_row([sample])) for sample in tangled_samples())
    assert flops.of_row(row) < alone


def test_a_gated_delta_net_by_hand():
    class Mixer(torch.nn.Module):
        num_v_heads, head_k_dim, head_v_dim = 3, 4, 5

        def __init__(self) -> None:
            super().__init__()
            self.conv1d = torch.nn.Conv1d(16, 16, 4, groups=16, bias=False)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear_attn = Mixer()

    model = tiny_model(MODELS["grouped queries, tied head"], torch.float32)
    model.config = copy.deepcopy(model.config)
    model.config.layer_types = ["linear_attention"]
    flops = count_flops(policy_of(model, Layer()))
    # taps x channels, and a state of 3 x 4 x 5 read, written and read: 2 FLOPs each, 3 passes
    assert flops.per_token == 6 * (4 * 16 + 3 * 3 * 4 * 5)
    assert flops.per_key == {}


def test_what_is_not_known_is_told_by_name():
    model = tiny_model(MODELS["grouped queries, tied head"], torch.float32)
    policy = policy_of(model)
    policy.layers[1].odd = torch.nn.Bilinear(2, 2, 2)
    with pytest.raises(UnknownArchitectureError, match=r"Bilinear\.weight"):
        count_flops(policy)
    del policy.layers[1].odd, policy.layers[1].self_attn
    with pytest.raises(UnknownArchitectureError, match="mixes tokens"):
        count_flops(policy)


def test_unknown_hardware_and_architectures_have_no_mfu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    policy = load_policy(resolved(make_model(tmp_path), tmp_path), None, torch.device("cpu"))
    assert measure_utilization(policy, torch.device("cpu"), None, 1) is None
    monkeypatch.setattr("asyncgrpo.training.model.flops.peak_rate", lambda device, dtype: 1e12)
    found = measure_utilization(policy, torch.device("cpu"), torch.bfloat16, 2)
    assert found == Utilization(count_flops(policy), 2e12)
    policy.layers[0].self_attn = torch.nn.Identity()
    assert measure_utilization(policy, torch.device("cpu"), None, 1) is None


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, False, 989.4),
        ("NVIDIA H100 PCIe", torch.float16, False, 756.5),
        ("NVIDIA A100-SXM4-80GB", torch.float32, False, 19.5),
        ("NVIDIA A100-SXM4-80GB", torch.float32, True, 156.0),
        ("NVIDIA A10", torch.bfloat16, False, 125.0),
        ("NVIDIA L40S", torch.bfloat16, False, 362.1),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, False, 165.2),
    ],
)
def test_a_device_is_known_by_its_name(name, dtype, tf32, tera):
    assert rate_of(name, dtype, tf32=tf32) == tera * 1e12


def test_other_devices_parts_of_one_and_types_have_no_rate():
    assert rate_of("Radeon VII", torch.bfloat16) is None
    assert rate_of("NVIDIA A100-SXM4-40GB MIG 1g.5gb", torch.bfloat16) is None
    assert rate_of("NVIDIA GeForce RTX 4090 Laptop GPU", torch.bfloat16) is None
    assert rate_of("NVIDIA H100 80GB HBM3", torch.float64) is None
    assert peak_rate(torch.device("cpu"), torch.bfloat16) is None


def test_no_name_hides_a_longer_one_below_it():
    for index, part in enumerate(RATES):
        assert rate_of(f"NVIDIA {part}", torch.float32) == list(RATES.values())[index].single * 1e12


def test_mfu_is_a_rate_over_the_window(row: Row):
    recorder = Recorder()
    recorder.record_rate("perf/fwd_bwd_mfu", 30.0, 1.0 * 100)
    recorder.record_rate("perf/fwd_bwd_mfu", 90.0, 3.0 * 100)
    total = recorder.drain()["perf/fwd_bwd_mfu"]
    assert total.total / total.weight == 0.3
