"""The processes of a run, planned from the resolved configuration.

    Config, Machine  --plan_servers-->   server-0 ...
                     --plan_training-->  worker ..., trainer   (stopped in reverse)

Pure: nothing is looked up here. Secrets never appear in a spec: a process finds its API key in
the environment it inherits from the launcher, under the name that the configuration gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asyncgrpo.channel.shares import Share
from asyncgrpo.config import Config
from asyncgrpo.config.sections.base import known
from asyncgrpo.launch.processes.spec import ProcessSpec, Ready
from asyncgrpo.process.title import process_title
from asyncgrpo.server.command import cuda_visible_devices, server_command

LOOPBACK = "127.0.0.1"
ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # compared with, never bound
# The variables that torchrun sets, for one rank (docs/decisions/0054). Set even where the trainer
# would do without: a cluster's job may have left others in the environment.
ONE_RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": LOOPBACK,
    "MASTER_PORT": "0",  # 0 = a free port
}


@dataclass(frozen=True)
class Machine:
    """The facts about the machine that a plan needs."""

    python: str  # the interpreter of worker and trainer
    cores: int
    ports: tuple[int, ...]  # free ones, one per server to launch; none with running servers
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # inherited
    kv_bytes_per_token: int | None = None  # of the model; None = not known
    has_delta_net: bool = False  # the model is known to be such a hybrid
    can_list_masks: bool = False  # the servers' vLLM knows --return-sampling-mask


def plan_servers(config: Config, machine: Machine) -> tuple[ProcessSpec, ...]:
    """The servers to launch: one per port."""
    return tuple(_server(config, machine, index, port) for index, port in enumerate(machine.ports))


def plan_training(
    config: Config, machine: Machine, run_dir: Path, checkpoint: int | None = None
) -> tuple[ProcessSpec, ...]:
    """Workers and trainer, each after the servers that are launched.

    `checkpoint` is the step to go on from; None = the newest, or the start.
    """
    needs = tuple(_server_name(index) for index in range(len(machine.ports)))
    return (
        *(_worker(machine, run_dir, share, needs) for share in worker_shares(config)),
        _trainer(config, machine, run_dir, checkpoint, needs),
    )


def server_urls(host: str, ports: tuple[int, ...]) -> tuple[str, ...]:
    """The URLs at which servers that bind `host` answer on this machine."""
    reachable = LOOPBACK if host in ANY_ADDRESS else host
    literal = f"[{reachable}]" if ":" in reachable else reachable
    return tuple(f"http://{literal}:{port}" for port in ports)


def _server(config: Config, machine: Machine, index: int, port: int) -> ProcessSpec:
    name = _server_name(index)
    command = server_command(
        config,
        port,
        device_kind(config),
        machine.environ,
        kv_bytes_per_token=machine.kv_bytes_per_token,
        has_delta_net=machine.has_delta_net,
        can_list_masks=machine.can_list_masks,
    )
    return ProcessSpec(
        name,
        command.argv,
        # vLLM names its processes by this prefix.
        _threads(config, machine)
        | {"VLLM_PROCESS_NAME_PREFIX": process_title(name, known(config.run.name))}
        | dict(command.env),
        Ready.ANSWERS,
    )


def worker_shares(config: Config) -> tuple[Share, ...]:
    """The share of the prompts that each worker takes."""
    count = config.rollout.workers
    return tuple(Share(index, count) for index in range(count))


def _worker(machine: Machine, run_dir: Path, share: Share, needs: tuple[str, ...]) -> ProcessSpec:
    argv = (
        machine.python,
        *("-m", "asyncgrpo.rollout.worker", str(run_dir)),
        *(() if share.alone else ("--index", str(share.index))),
    )
    env = {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return ProcessSpec(share.name, argv, env, needs=needs)


def _trainer(
    config: Config,
    machine: Machine,
    run_dir: Path,
    checkpoint: int | None,
    needs: tuple[str, ...],
) -> ProcessSpec:
    ranks = known(config.trainer.nproc_per_node)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    argv = (
        machine.python,
        *(torchrun if ranks > 1 else ()),
        *("-m", "asyncgrpo.training.trainer", str(run_dir)),
        *(("--checkpoint", str(checkpoint)) if checkpoint is not None else ()),
    )
    env = {
        "PYTHONUNBUFFERED": "1",
        **(ONE_RANK if ranks == 1 else {}),
        **_threads(config, machine),
        "CUDA_VISIBLE_DEVICES": cuda_visible_devices(
            known(config.trainer.devices), machine.environ
        ),
    }
    return ProcessSpec("trainer", argv, env, needs=needs)


def _server_name(index: int) -> str:
    return f"server-{index}"


def device_kind(config: Config) -> str:
    """The kind of device that the servers compute on: cuda or cpu."""
    return "cuda" if known(config.server.devices) else "cpu"


def _threads(config: Config, machine: Machine) -> dict[str, str]:
    """Threads per process where all compute on the CPU: its cores, shared out evenly."""
    if known(config.server.devices) or known(config.trainer.devices):
        return {}
    servers = max(1, len(machine.ports))  # a running server may be on this machine too
    processes = servers + int(known(config.trainer.nproc_per_node))
    return {"OMP_NUM_THREADS": str(max(1, machine.cores // processes))}
