"""The plugin that vLLM loads in each of its processes (`vllm.general_plugins`).

    --weight-transfer-config '{"backend": "folder"}'  ->  folder_engine.FolderWeightTransferEngine

vLLM calls `register` in the API server, the engine core and every worker, in any program that
imports it with this package installed, and may call it more than once. So it only leaves a name
behind: the engine's module is imported by the worker that needs it.
"""

import logging

BACKEND = "folder"
ENGINE_MODULE = "asyncgrpo.server.folder_engine"
ENGINE_CLASS = "FolderWeightTransferEngine"

# Under vLLM's own logger, so that it reaches the server's log.
_log = logging.getLogger("vllm.asyncgrpo")


def register() -> None:
    """Make `folder` a weight-transfer backend of this vLLM; never fails, whatever it lacks."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError as error:
        _log.debug("no weight-transfer backend %r: %s", BACKEND, error)
        return
    try:
        WeightTransferEngineFactory.register_engine(BACKEND, ENGINE_MODULE, ENGINE_CLASS)
    except ValueError:
        pass  # registered by an earlier call
    except Exception as error:  # noqa: BLE001 - a plugin must not keep an unrelated server from starting
        _log.warning("weight-transfer backend %r could not be registered: %s", BACKEND, error)
