"""The processes of a configuration, as values."""

from pathlib import Path

import pytest

from asyncgrpo.config import Config, Facts, derive
from asyncgrpo.errors import ConfigError
from asyncgrpo.launch.plan import Machine, plan_servers, plan_training, server_urls
from asyncgrpo.launch.processes.spec import MASK, ProcessSpec, Ready, describe, masked

RUN = Path("/runs/demo")
TWO_CORES = Machine("/usr/bin/python", cores=2, ports=(8000,))


def configuration(cuda_count: int = 0, **sections) -> Config:
    tree = {"model": {"name_or_path": "org/model"}, "run": {"name": "demo", "dir": str(RUN)}}
    config = Config.model_validate(tree | sections)
    facts = Facts(cuda_count=cuda_count, model_max_positions=512, server_port=8000)
    return derive(config, facts).config


def test_the_order_is_server_worker_trainer():
    config = configuration()
    (server,) = plan_servers(config, TWO_CORES)
    worker, trainer = plan_training(config, TWO_CORES, RUN)
    assert [spec.name for spec in (server, worker, trainer)] == ["server-0", "worker", "trainer"]
    assert server.ready is Ready.ANSWERS
    assert worker.needs == trainer.needs == ("server-0",)


def test_worker_and_trainer_get_the_run_directory_alone():
    worker, trainer = plan_training(configuration(), TWO_CORES, RUN)
    assert worker.argv[-3:] == ("-m", "asyncgrpo.rollout.worker", str(RUN))
    assert trainer.argv[1:] == ("-m", "asyncgrpo.training.trainer", str(RUN))


def test_torchrun_starts_several_ranks_and_a_single_one_needs_its_variables_alone():
    config = configuration(trainer={"nproc_per_node": 2})
    _, two = plan_training(config, TWO_CORES, RUN)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert two.argv[1:] == (*torchrun, "-m", "asyncgrpo.training.trainer", str(RUN))
    assert "RANK" not in two.env
    _, one = plan_training(configuration(), TWO_CORES, RUN)
    assert (one.env["RANK"], one.env["WORLD_SIZE"]) == ("0", "1")


def test_several_workers_are_told_apart():
    config = configuration(rollout={"workers": 3})
    *workers, trainer = plan_training(config, TWO_CORES, RUN)
    assert [spec.name for spec in workers] == ["worker-0", "worker-1", "worker-2"]
    assert workers[2].argv[-3:] == (str(RUN), "--index", "2")
    assert trainer.name == "trainer"


def test_resume_names_the_checkpoint_only_where_one_was_chosen():
    _, trainer = plan_training(configuration(), TWO_CORES, RUN, checkpoint=40)
    assert trainer.argv[-2:] == ("--checkpoint", "40")


def test_two_cores_are_one_thread_each():
    config = configuration()
    (server,) = plan_servers(config, TWO_CORES)
    _, trainer = plan_training(config, TWO_CORES, RUN)
    assert server.env["OMP_NUM_THREADS"] == trainer.env["OMP_NUM_THREADS"] == "1"
    sixteen = Machine("python", cores=16, ports=(8000,))
    assert plan_training(config, sixteen, RUN)[1].env["OMP_NUM_THREADS"] == "8"


def test_devices_are_shared_out_and_the_worker_sees_none():
    config = configuration(cuda_count=4)
    worker, trainer = plan_training(config, TWO_CORES, RUN)
    assert worker.env["CUDA_VISIBLE_DEVICES"] == ""
    assert trainer.env["CUDA_VISIBLE_DEVICES"] == "1,2,3"
    assert "OMP_NUM_THREADS" not in trainer.env
    assert plan_servers(config, TWO_CORES)[0].env["CUDA_VISIBLE_DEVICES"] == "0"


def test_gpus_are_counted_within_those_that_the_launcher_sees():
    config = configuration(cuda_count=3, trainer={"nproc_per_node": 1})
    machine = Machine("python", 2, (8000,), environ={"CUDA_VISIBLE_DEVICES": "4, GPU-b,6"})
    (server,) = plan_servers(config, machine)
    worker, trainer = plan_training(config, machine, RUN)
    assert server.env["CUDA_VISIBLE_DEVICES"] == "4"
    assert trainer.env["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert worker.env["CUDA_VISIBLE_DEVICES"] == ""


def test_a_gpu_that_the_launcher_does_not_see_is_named():
    config = configuration(trainer={"devices": (2,)})
    machine = Machine("python", 2, (8000,), environ={"CUDA_VISIBLE_DEVICES": "4,5"})
    with pytest.raises(ConfigError, match=r"GPU 2 .*CUDA_VISIBLE_DEVICES=4,5 leaves 2"):
        plan_training(config, machine, RUN)


def test_running_servers_are_not_launched():
    config = configuration(server={"urls": ["http://10.0.0.1:8000"]})
    elsewhere = Machine("python", cores=2, ports=())
    assert plan_servers(config, elsewhere) == ()
    assert all(spec.needs == () for spec in plan_training(config, elsewhere, RUN))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
        ("node7", "http://node7:8000"),
    ],
)
def test_a_server_is_reached_where_it_binds(host: str, url: str):
    assert server_urls(host, (8000,)) == (url,)


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "--api-key", "DB_PASSWD"])
def test_secrets_are_masked_by_their_name(name: str):
    assert masked(name, "abc") == MASK


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "--max-num-batched-tokens", "MONKEY_BUSINESS"]
)
def test_a_name_that_only_sounds_like_a_secret_is_shown(name: str):
    assert masked(name, "abc") == "abc"


def test_a_printed_spec_can_be_pasted_and_holds_no_secret():
    spec = ProcessSpec(
        "server-0",
        ("python", "-m", "vllm", "--api-key", "sesame", "--json", '{"a": 1}'),
        {"VLLM_API_KEY": "sesame", "PATH_WITH": "a b"},
    )
    text = describe(spec)
    assert "sesame" not in text
    assert "PATH_WITH='a b'" in text
    assert """--json '{"a": 1}'""" in text


def test_a_hybrid_is_served_as_one_on_a_cpu():
    hybrid = Machine("/usr/bin/python", cores=2, ports=(8000,), has_delta_net=True)
    (server,) = plan_servers(configuration(), hybrid)
    assert "--no-enable-prefix-caching" in server.argv
