"""Prints the engine that vLLM's factory finds under our name, after two registrations."""

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from asyncgrpo.server.vllm_plugin import BACKEND, register

register()
register()
print(WeightTransferEngineFactory._registry[BACKEND]().__name__)
