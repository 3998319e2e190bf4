"""LoRA adapters of one server: load and unload them while it runs."""

import asyncio
import time

from asyncgrpo.errors import ServerError
from asyncgrpo.server.client_control import READY_POLL_S, ControlCalls
from asyncgrpo.server.failures import StatusError

ADAPTER_SEEN_WITHIN_S = 15.0  # how late a file may appear on a shared file system


class AdapterCalls(ControlCalls):
    """The calls of adapter sync."""

    async def load_adapter(self, name: str, path: str) -> None:
        """Serve the adapter in directory `path` as `name`; served already from there is success.

        A path that the server does not see yet is asked for again for some seconds.
        """
        deadline = time.monotonic() + ADAPTER_SEEN_WITHIN_S
        while True:
            try:
                await self._control(
                    "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}
                )
            except StatusError as error:
                if "already been loaded" in str(error):
                    await self._check_served_from(name, path)
                    return
                if "No adapter found" not in str(error) or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(READY_POLL_S)
            else:
                return

    async def unload_adapter(self, name: str) -> None:
        """Stop serving `name`; raises a `StatusError` with status 404 where it is not served."""
        await self._control("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def _check_served_from(self, name: str, path: str) -> None:
        roots = [model.root for model in await self.models() if model.name == name]
        if roots != [path]:
            raise ServerError(
                f"{self.base_url} serves {name!r} from {roots}, not from {path!r}: one name must "
                "mean one set of weights. Unload it, or restart the server"
            )
