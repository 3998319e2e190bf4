"""Several trainer processes as one: devices, orders, gradients, shards.

    rank 0  --its own order to each rank-->  all ranks  --gradients summed-->  the same step

Everything here works with gloo on CPU exactly as with NCCL on GPUs. A gradient is the sum over
ranks of what each computed: losses are divided by the trained tokens of all ranks beforehand.
"""

import datetime
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from asyncgrpo.errors import RunError
from asyncgrpo.metrics.values import Aggregates
from asyncgrpo.training.orders import Order, decode_order, encode_order

BUCKET_ELEMENTS = 16 * 1024**2  # gradients reduced in one collective


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the trainer's processes."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True on rank 0, the one that talks to worker, servers and files."""
        return self.rank == 0


def join_ranks(*, use_gpu: bool, timeout_s: float) -> Ranks:
    """Joins the process group that torchrun describes; alone without torchrun."""
    device = torch.device("cpu")
    if use_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if use_gpu else "gloo"
    timeout = datetime.timedelta(seconds=timeout_s)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


def leave_ranks() -> None:
    """Leaves the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _send_bytes(data: bytes, rank: int) -> None:
    dist.send(torch.tensor([len(data)]), rank)
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), rank)


def _receive_bytes(rank: int) -> bytes:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, rank)
    data = torch.empty(int(size.item()), dtype=torch.uint8)
    dist.recv(data, rank)
    return data.numpy().tobytes()


def send_orders(orders: Sequence[Order]) -> Order:
    """Sends each rank its own order and returns rank 0's; rank 0 calls it."""
    mine, *others = orders
    for rank, order in enumerate(others, start=1):
        _send_bytes(encode_order(order), rank)
    return mine


def receive_order() -> Order:
    """Waits for rank 0's next order, on any other rank.

    Raises RunError if rank 0 is gone.
    """
    try:
        data = _receive_bytes(0)
    except RuntimeError as error:
        raise RunError(
            f"rank {dist.get_rank()} lost rank 0 ({error}); the log of rank 0 says why"
        ) from error
    return decode_order(data)


def shard(
    model: nn.Module,
    layers: Iterable[nn.Module],
    ranks: Ranks,
    *,
    compute: torch.dtype | None,
    replicate: bool,
) -> None:
    """Shards parameters over the ranks: each decoder layer by itself, the rest with the root.

    The root's own parameters, the head's among them, stay whole from forward to backward.

    Args:
        model: the module whose `forward` is called.
        layers: its decoder layers.
        ranks: this process.
        compute: type of forward and backward; None = the parameters' own, which they keep anyway.
        replicate: keep every parameter whole on every rank, and only reduce gradients.
    """
    if replicate:
        names = ("replicate", "shard")
        mesh = init_device_mesh(ranks.device.type, (ranks.world, 1), mesh_dim_names=names)
    else:
        mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def local_loss_scale(model: nn.Module, ranks: Ranks) -> float:
    """Factor on each rank's loss that makes the reduced gradient a sum over ranks."""
    return float(ranks.world) if isinstance(model, FSDPModule) else 1.0


def sum_gradients(model: nn.Module, ranks: Ranks) -> None:
    """Adds up the gradients of all ranks of parameters that are not sharded.

    Those of shards are summed already.
    """
    if ranks.world == 1 or isinstance(model, FSDPModule):
        return
    gradients: list[Tensor] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def gather_aggregates(aggregates: Aggregates, ranks: Ranks) -> list[Aggregates]:
    """Every rank's observations, on rank 0; nothing on the others."""
    if not ranks.is_first:
        _send_bytes(msgspec.msgpack.encode(aggregates), 0)
        return []
    received = [_receive_bytes(rank) for rank in range(1, ranks.world)]
    return [aggregates, *(msgspec.msgpack.decode(each, type=Aggregates) for each in received)]


def is_lost_rank(error: RuntimeError) -> bool:
    """True if a collective failed as another rank ended: gloo has no class for it."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


def wait_for_ranks(ranks: Ranks) -> None:
    """Returns once every rank has come here."""
    sum_over_ranks(torch.zeros((), device=ranks.device))


def sum_over_ranks(values: Tensor) -> Tensor:
    """Element-wise sum over ranks, on every rank."""
    dist.all_reduce(values)
    return values


def _buckets(gradients: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Consecutive gradients of one dtype, up to BUCKET_ELEMENTS together."""
    bucket: list[Tensor] = []
    elements = 0
    for gradient in gradients:
        full = elements + gradient.numel() > BUCKET_ELEMENTS
        if bucket and (full or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, elements = [], 0
        bucket.append(gradient)
        elements += gradient.numel()
    if bucket:
        yield bucket
