"""`server`: vLLM, launched by the run or already running."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from asyncgrpo.config.sections.base import (
    Auto,
    Devices,
    Dtype,
    EnvironmentVariable,
    Port,
    PositiveFloat,
    PositiveInt,
    Section,
    Strings,
)


class ServerConfig(Section):
    """The servers that hold the sampler."""

    urls: Strings | None = None
    """Base URLs of running servers (`asyncgrpo serve` elsewhere); null = launch them."""
    replicas: PositiveInt = 1
    """Servers to launch."""
    devices: Auto | Devices = "auto"
    """GPUs of the servers; `[]` = CPU."""
    host: str = "127.0.0.1"
    """Address to bind. Any but loopback needs `api_key_env`."""
    port: Auto | Port = "auto"
    """Port of the first server; `auto` = a free one."""
    max_model_len: PositiveInt | None = None
    """Context: most tokens of prompt and completion together; null = the model's own."""
    dtype: Dtype | None = None
    """Type the server computes in; null = `model.dtype`."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of each GPU's memory the server takes; null = vLLM's default."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs that share each layer."""
    data_parallel_size: PositiveInt = 1
    """Engines behind one server."""
    api_server_count: PositiveInt | None = None
    """API processes in front of the engine; null = vLLM's default."""
    python: str | None = None
    """Interpreter that has vLLM; null = this one."""
    extra_args: Mapping[str, Any] = Field(default_factory=dict)
    """Further flags of vLLM: `max-num-seqs: 64`; true = a bare flag, false = `--no-...`."""
    env: Mapping[str, str] = Field(default_factory=dict)
    """Further environment variables of the server."""
    vllm_server_timeout: PositiveFloat = 1800.0
    """Seconds to wait for the server to answer; also the longest time of a turn."""
    api_key_env: EnvironmentVariable | None = None
    """Name of the environment variable that holds the servers' API key."""
