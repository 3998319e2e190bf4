"""The load of a server: its `/metrics` text, reduced to one record.

    Prometheus text  --parse_load-->  ServerLoad

A server can hold several engines (data parallelism), each a label value of every series: usage is
the largest of them, counts are their sum.
"""

from collections import defaultdict

import msgspec
from prometheus_client.parser import text_string_to_metric_families


class ServerLoad(msgspec.Struct, frozen=True):
    """The load of a server at one moment, for admission and the metrics."""

    kv_usage: float  # 0..1, of the fullest engine
    running: int
    waiting: int
    preemptions: int  # since the server started, as all counters below
    generation_tokens: int
    prefix_queries: int  # tokens looked up in the prefix cache
    prefix_hits: int  # of them found
    kv_tokens: int | None = None  # None where the server does not say
    block_size: int | None = None
    kv_max_concurrency: float | None = None  # requests of max_model_len that fit at once
    adapters_in_use: frozenset[str] = frozenset()  # with requests running or waiting


_CONFIG = "vllm:cache_config_info"
_ADAPTERS = "vllm:lora_requests_info"
_ADAPTER_LABELS = ("running_lora_adapters", "waiting_lora_adapters")


def parse_load(text: str) -> ServerLoad:
    """Read `/metrics` of a vLLM server; a series it lacks counts as 0."""
    values: dict[str, list[float]] = defaultdict(list)
    configs: list[dict[str, str]] = []
    adapters: list[tuple[float, frozenset[str]]] = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == _CONFIG:
                configs.append(sample.labels)
            elif sample.name == _ADAPTERS:
                adapters.append((sample.value, _adapters(sample.labels)))
            elif sample.name.startswith("vllm:"):
                values[sample.name].append(sample.value)

    def total(name: str) -> int:
        return int(sum(values[name]))

    return ServerLoad(
        kv_usage=max(values["vllm:kv_cache_usage_perc"], default=0.0),
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        preemptions=total("vllm:num_preemptions_total"),
        generation_tokens=total("vllm:generation_tokens_total"),
        prefix_queries=total("vllm:prefix_cache_queries_total"),
        prefix_hits=total("vllm:prefix_cache_hits_total"),
        kv_tokens=_kv_tokens(configs),
        block_size=next((int(c["block_size"]) for c in configs if _number(c, "block_size")), None),
        kv_max_concurrency=_sum_of(configs, "kv_cache_max_concurrency"),
        # A series per combination ever seen; its value is when it was last true.
        adapters_in_use=max(adapters, key=lambda seen: seen[0], default=(0.0, frozenset()))[1],
    )


def _adapters(labels: dict[str, str]) -> frozenset[str]:
    names = (name for label in _ADAPTER_LABELS for name in labels.get(label, "").split(","))
    return frozenset(name for name in names if name)


def _kv_tokens(configs: list[dict[str, str]]) -> int | None:
    """Tokens that fit in the KV cache; 0.28 names blocks only."""
    tokens = _sum_of(configs, "kv_cache_size_tokens")
    if tokens is not None:
        return int(tokens)
    sizes = [
        int(c["num_gpu_blocks"]) * int(c["block_size"])
        for c in configs
        if _number(c, "num_gpu_blocks") and _number(c, "block_size")
    ]
    return sum(sizes) if sizes else None


def _sum_of(configs: list[dict[str, str]], label: str) -> float | None:
    numbers = [number for c in configs if (number := _number(c, label)) is not None]
    return sum(numbers) if numbers else None


def _number(labels: dict[str, str], label: str) -> float | None:
    """The label as a number; None where it is missing or no number."""
    try:
        return float(labels[label])
    except (KeyError, ValueError):
        return None
