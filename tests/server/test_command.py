"""vLLM's command line for one recipe by hand, then what each key adds or replaces."""

import json

import pytest

from asyncgrpo.errors import ConfigError
from asyncgrpo.server.command import LORA_RANK_LIMITS, server_command


def flags(argv: tuple[str, ...]) -> dict[str, str | None]:
    """The flags after `-m module`; None for a bare one, several values joined by spaces."""
    found: dict[str, str | None] = {}
    rest = list(argv[3:])
    while rest:
        name = rest.pop(0)
        assert name.startswith("--"), name
        assert name not in found, f"{name} is given twice"
        values = []
        while rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        found[name] = " ".join(values) if values else None
    return found


def test_folder_sync_on_a_cpu_by_hand(make_config):
    command = server_command(make_config("rollout.seed=7"), 8123, "cpu", {})
    assert command.argv[1:3] == ("-m", "vllm.entrypoints.openai.api_server")
    given = flags(command.argv)
    expected = {
        "--model": "fake",
        "--served-model-name": "fake",
        "--host": "127.0.0.1",
        "--port": "8123",
        "--dtype": "float32",
        "--max-model-len": "256",
        "--seed": "7",
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--enable-scale-out": None,
        "--middleware": "asyncgrpo.server.packed.PackedEndpoint",
        "--enforce-eager": None,
        "--no-enable-chunked-prefill": None,
        "--distributed-executor-backend": "uni",
    }
    assert expected.items() <= given.items()
    assert json.loads(given["--weight-transfer-config"] or "") == {"backend": "folder"}
    assert "--enable-lora" not in given
    assert command.env["VLLM_SERVER_DEV_MODE"] == "1"
    assert command.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert command.env["TORCHDYNAMO_DISABLE"] == "1"
    assert "VLLM_API_KEY" not in command.env


def test_adapters_get_a_slot_for_each_version_that_may_be_in_flight(make_config):
    config = make_config("model.peft={r: 12}", "rollout.max_staleness=4", "sync.backend=adapter")
    command = server_command(config, 1, "cpu")
    given = flags(command.argv)
    assert given["--max-lora-rank"] == "16"
    assert given["--max-loras"] == given["--max-cpu-loras"] == "6"
    assert "--enable-lora" in given
    assert "--weight-transfer-config" not in given
    assert command.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


@pytest.mark.parametrize("rank", [1, 2, 8, 9, 64, 65, 257, 512])
def test_the_rank_limit_is_the_smallest_of_vllms_that_fits(make_config, rank):
    config = make_config(f"model.peft={{r: {rank}}}", "sync.backend=adapter")
    given = flags(server_command(config, 1, "cpu").argv)
    limit = int(given["--max-lora-rank"] or 0)
    assert limit in LORA_RANK_LIMITS
    assert limit >= rank
    assert not [smaller for smaller in LORA_RANK_LIMITS if rank <= smaller < limit]


@pytest.mark.parametrize("length", [100, 4096, 9000])
def test_a_prefill_is_never_chunked_on_a_cpu(make_config, length):
    given = flags(server_command(make_config(f"server.max_model_len={length}"), 1, "cpu").argv)
    assert "--no-enable-chunked-prefill" in given
    assert int(given["--max-num-batched-tokens"] or 0) >= length


@pytest.mark.parametrize(
    ("extra_args", "flag"),
    [
        ("{}", "--no-enable-prefix-caching"),
        ("{enable_chunked_prefill: false}", "--no-enable-prefix-caching"),
        ("{enable_prefix_caching: true}", "--enable-prefix-caching"),
        ("{enable_chunked_prefill: true}", None),
        ("{enable-chunked-prefill: null}", None),
    ],
)
def test_a_hybrids_prefixes_are_not_cached_on_a_cpu_unless_prefills_are_chunked(
    make_config, extra_args, flag
):
    config = make_config(f"server.extra_args={extra_args}")
    given = flags(server_command(config, 1, "cpu", {}, has_delta_net=True).argv)
    caching = {"--no-enable-prefix-caching", "--enable-prefix-caching"} & given.keys()
    assert caching == ({flag} if flag else set())


@pytest.mark.parametrize(("device_kind", "has_delta_net"), [("cuda", True), ("cpu", False)])
def test_other_servers_keep_vllms_own_prefix_cache(make_config, device_kind, has_delta_net):
    command = server_command(make_config(), 1, device_kind, {}, has_delta_net=has_delta_net)
    assert "--no-enable-prefix-caching" not in flags(command.argv)


def test_a_gpu_server_keeps_vllms_own_batching_and_sees_its_devices(make_config):
    config = make_config("server.devices=[2, 3]", "server.tensor_parallel_size=2")
    command = server_command(config, 1, "cuda", {})
    given = flags(command.argv)
    assert given["--tensor-parallel-size"] == "2"
    assert not {"--enforce-eager", "--no-enable-chunked-prefill"} & given.keys()
    assert command.env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "VLLM_CPU_KVCACHE_SPACE" not in command.env
    assert "--distributed-executor-backend" not in given


def test_several_processes_of_one_engine_keep_vllms_own_executor(make_config):
    command = server_command(make_config("server.tensor_parallel_size=2"), 1, "cpu")
    assert "--distributed-executor-backend" not in flags(command.argv)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in command.env


@pytest.mark.parametrize(
    ("bytes_per_token", "length", "gib"),
    [
        (512, 128, 1),  # the demo: 512 B x 128 x 256 sequences are 16 MB
        (46_080, 512, 2),  # 6 GB would hold them all: as many as fit
        (229_376, 16_384, 4),  # one sequence of full length must fit
        (None, 128, 2),
    ],
)
def test_the_kv_cache_on_a_cpu_is_no_larger_than_the_run_can_use(
    make_config, bytes_per_token, length, gib
):
    config = make_config(f"server.max_model_len={length}")
    command = server_command(config, 1, "cpu", {}, kv_bytes_per_token=bytes_per_token)
    assert command.env["VLLM_CPU_KVCACHE_SPACE"] == str(gib)


def test_more_logprobs_than_vllms_default_raise_its_limit(make_config):
    assert flags(server_command(make_config(), 1, "cpu").argv)["--max-logprobs"] == "20"
    # `top_k` style recipes may ask for many; one more is for /inference/v1/generate
    config = make_config("loss.num_sampler_logprobs=40", "server.extra_args={max-logprobs: 64}")
    assert flags(server_command(config, 1, "cpu").argv)["--max-logprobs"] == "64"


def test_as_many_logprobs_as_top_k_are_allowed(make_config):
    given = flags(server_command(make_config("rollout.top_k=64"), 1, "cpu").argv)
    assert given["--max-logprobs"] == "64"


@pytest.mark.parametrize(
    ("top_k", "device_kind", "knows", "asked"),
    [
        (64, "cuda", True, True),
        (20, "cuda", True, False),  # 20 logprobs tell the same set
        (64, "cuda", False, False),
        (64, "cpu", True, False),  # needs model runner V2
        (0, "cuda", True, False),
    ],
)
def test_a_mask_is_asked_for_where_logprobs_would_be_a_burden(
    make_config, top_k, device_kind, knows, asked
):
    config = make_config(f"rollout.top_k={top_k}")
    command = server_command(config, 1, device_kind, {}, can_list_masks=knows)
    assert ("--return-sampling-mask" in command.argv) is asked
    dropped = make_config(
        f"rollout.top_k={top_k}", "server.extra_args={return-sampling-mask: null}"
    )
    command = server_command(dropped, 1, device_kind, {}, can_list_masks=knows)
    assert "--return-sampling-mask" not in command.argv


def test_extra_args_replace_drop_and_add(make_config):
    config = make_config(
        "server.extra_args={max_num_seqs: 32, enforce-eager: null, --enable-prefix-caching: false, "
        "disable-cascade-attn: true, compilation-config: {level: 0}}"
    )
    given = flags(server_command(config, 1, "cpu").argv)
    assert given["--max-num-seqs"] == "32"
    assert "--enforce-eager" not in given
    assert given["--no-enable-prefix-caching"] is None
    assert given["--disable-cascade-attn"] is None
    assert json.loads(given["--compilation-config"] or "") == {"level": 0}


def test_variables_and_interpreter_of_the_recipe_win(make_config):
    config = make_config("server.env={VLLM_CPU_KVCACHE_SPACE: '8'}", "server.python=/opt/py")
    command = server_command(config, 1, "cpu")
    assert command.argv[0] == "/opt/py"
    assert command.env["VLLM_CPU_KVCACHE_SPACE"] == "8"


def test_the_api_key_travels_as_a_variable_and_never_in_argv(make_config):
    config = make_config("server.api_key_env=OUR_KEY")
    command = server_command(config, 1, "cpu", {"OUR_KEY": "s3cret"})
    assert command.env["VLLM_API_KEY"] == "s3cret"
    assert not [argument for argument in command.argv if "s3cret" in argument]
    # vLLM itself guards /v1 only
    assert "asyncgrpo.server.key_guard.KeyGuard" in command.argv
    assert "asyncgrpo.server.packed.PackedEndpoint" in command.argv


def test_an_api_key_that_is_not_set_is_named(make_config):
    with pytest.raises(ConfigError, match=r"server\.api_key_env.*OUR_KEY is not set"):
        server_command(make_config("server.api_key_env=OUR_KEY"), 1, "cpu", {})


@pytest.mark.parametrize(
    ("targets", "given"),
    [
        ("[q_proj, v_proj]", "q_proj v_proj"),
        ("all-linear", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"),
        (r"'.*\.[qv]_proj'", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"),
    ],
)
def test_on_a_cpu_the_lm_head_gets_no_lora_kernel(make_config, targets, given):
    peft = f"model.peft={{r: 4, target_modules: {targets}}}"
    config = make_config(peft, "sync.backend=adapter")
    assert flags(server_command(config, 8000, "cpu").argv)["--lora-target-modules"] == given
    assert "--lora-target-modules" not in server_command(config, 8000, "cuda").argv
