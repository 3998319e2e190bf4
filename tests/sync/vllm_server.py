"""A real vLLM on CPU for the tests, with a tiny model of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from asyncgrpo.launch.machine import free_port
from asyncgrpo.server.client import ServerClient

from .models import VOCAB

READY_TIMEOUT_S = 500.0


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
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
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
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_wait_ready(url, process, log))
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _wait_ready(url: str, process: subprocess.Popen, log: Path) -> None:
    def still_running(_waited_s: float) -> None:
        if process.poll() is not None:
            raise AssertionError(
                f"vLLM ended with {process.returncode}:\n{log.read_text()[-4000:]}"
            )

    async with ServerClient(url) as client:
        await client.wait_ready(READY_TIMEOUT_S, still_running)
