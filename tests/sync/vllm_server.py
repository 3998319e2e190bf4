"""A real vLLM on CPU for the tests, with a tiny model of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from asyncgrpo.launch.machine import free_port
from tests.server.vllm_process import running

from .models import VOCAB


def save_with_tokenizer(model: Qwen3ForCausalLM, folder: Path) -> Path:
    """A checkpoint vLLM can start from: the model and a tokenizer of whole words."""
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0"))
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def running_vllm(model: Path, log: Path, *flags: str) -> Iterator[str]:
    """The base URL of a ready server, which ends with the block."""
    port = free_port("127.0.0.1")
    arguments = [
        *("--model", str(model), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512"),
        # A seeded request whose prefill is chunked kills the CPU engine.
        *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048"),
        *("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"),
        *("--distributed-executor-backend", "uni"),  # as server/command.py starts it
        "--enable-scale-out",
        *flags,
    ]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    with running(arguments, environment, port, log) as url:
        yield url
