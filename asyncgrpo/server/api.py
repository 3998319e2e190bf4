"""A server's answers about itself, as typed records of the fields we need.

GET /v1/models    --served_models-->  ServedModel ...
GET /server_info  --server_info-->    ServerInfo
GET /weight_info  --weight_version-->  the label of the weights
"""

from enum import StrEnum
from typing import Any

import msgspec

from asyncgrpo.errors import ServerError


class Endpoint(StrEnum):
    """The endpoints that generate turns, by URL path; in order of preference."""

    PACKED = "/asyncgrpo/generate"
    GENERATE = "/inference/v1/generate"
    COMPLETIONS = "/v1/completions"


class ServedModel(msgspec.Struct, frozen=True):
    """A name a request may ask for."""

    name: str = msgspec.field(name="id")
    root: str | None = None  # where it was loaded from
    parent: str | None = None  # the base model's name, for an adapter
    max_model_len: int | None = None  # None for an adapter


class ServerInfo(msgspec.Struct, frozen=True):
    """The configuration that a server was started with."""

    model: str
    dtype: str  # float32, bfloat16, ...
    max_model_len: int
    max_logprobs: int
    logprobs_mode: str
    tensor_parallel_size: int
    data_parallel_size: int
    block_size: int | None
    max_lora_rank: int | None  # None = without --enable-lora, as the next
    max_loras: int | None
    weight_transfer_backend: str | None


class _ModelConfig(msgspec.Struct, frozen=True):
    model: str
    dtype: str
    max_model_len: int
    max_logprobs: int = 20
    logprobs_mode: str = "raw_logprobs"


class _LoraConfig(msgspec.Struct, frozen=True):
    max_lora_rank: int
    max_loras: int


class _ParallelConfig(msgspec.Struct, frozen=True):
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1


class _CacheConfig(msgspec.Struct, frozen=True):
    block_size: int | None = None


class _TransferConfig(msgspec.Struct, frozen=True):
    backend: str


class _VllmConfig(msgspec.Struct, frozen=True):
    model_config: _ModelConfig
    parallel_config: _ParallelConfig
    cache_config: _CacheConfig
    lora_config: _LoraConfig | None = None
    weight_transfer_config: _TransferConfig | None = None


class _InfoAnswer(msgspec.Struct, frozen=True):
    vllm_config: _VllmConfig


class _WeightAnswer(msgspec.Struct, frozen=True):
    weight_version: str


class _ModelsAnswer(msgspec.Struct, frozen=True):
    data: tuple[ServedModel, ...]


def served_models(body: bytes) -> tuple[ServedModel, ...]:
    """Decode `/v1/models`."""
    answer: _ModelsAnswer = _decode(body, _ModelsAnswer, "/v1/models")
    return answer.data


def server_info(body: bytes) -> ServerInfo:
    """Decode `/server_info?config_format=json`."""
    answer: _InfoAnswer = _decode(body, _InfoAnswer, "/server_info")
    config = answer.vllm_config
    return ServerInfo(
        model=config.model_config.model,
        dtype=config.model_config.dtype.removeprefix("torch."),
        max_model_len=config.model_config.max_model_len,
        max_logprobs=config.model_config.max_logprobs,
        logprobs_mode=config.model_config.logprobs_mode,
        tensor_parallel_size=config.parallel_config.tensor_parallel_size,
        data_parallel_size=config.parallel_config.data_parallel_size,
        block_size=config.cache_config.block_size,
        max_lora_rank=config.lora_config.max_lora_rank if config.lora_config else None,
        max_loras=config.lora_config.max_loras if config.lora_config else None,
        weight_transfer_backend=(
            config.weight_transfer_config.backend if config.weight_transfer_config else None
        ),
    )


def weight_version(body: bytes) -> str:
    """Decode `/weight_info`."""
    answer: _WeightAnswer = _decode(body, _WeightAnswer, "/weight_info")
    return answer.weight_version


def _decode(body: bytes, kind: type[Any], path: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ServerError(f"{path} answered something unreadable ({error})") from error
