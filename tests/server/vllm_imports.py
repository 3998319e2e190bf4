"""Imports of the server and its engine, and an engine forked from the server.

On a CPU vLLM spawns its engine, which imports everything once more.
"""

import multiprocessing.context as mp

import torch
import vllm.entrypoints.openai.api_server
import vllm.model_executor.models.qwen3
import vllm.v1.engine.async_llm
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker  # noqa: F401

import asyncgrpo.server.folder_engine
import asyncgrpo.server.packed  # noqa: F401

torch._dynamo.config.disable = True  # as TORCHDYNAMO_DISABLE, which is read at the import
contexts = mp._concrete_contexts  # pyright: ignore[reportAttributeAccessIssue]  # private
contexts["spawn"] = contexts["fork"]
