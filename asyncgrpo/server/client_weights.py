"""Weights of one server, replaced in place.

pause -> start_weight_update -> update_weights -> finish_weight_update -> resume
"""

from collections.abc import Mapping
from typing import Any

from asyncgrpo.server.api import weight_version
from asyncgrpo.server.client_control import ControlCalls
from asyncgrpo.server.failures import RouteMissingError


class WeightCalls(ControlCalls):
    """The calls of folder sync."""

    async def pause(self, mode: str = "keep") -> None:
        """Freeze generation; `keep` holds what is under way until `resume`."""
        await self._control("POST", f"/pause?mode={mode}")

    async def resume(self) -> None:
        """Go on after `pause`; harmless when not paused."""
        await self._control("POST", "/resume")

    async def start_weight_update(self) -> None:
        """Open a weight update; the server must be paused."""
        await self._control("POST", "/start_weight_update")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        """Have the weight-transfer engine load what `info` describes."""
        await self._control("POST", "/update_weights", {"update_info": dict(info)})

    async def finish_weight_update(self, version: int) -> None:
        """Close the update; tokens sampled from here on are labelled `version`."""
        await self._control("POST", "/finish_weight_update", {"weight_version": str(version)})

    async def weight_version(self) -> str | None:
        """The label of the weights that are served; "default" before the first update.

        None where the server cannot tell (vLLM before 0.32).
        """
        try:
            return weight_version(await self._control("GET", "/weight_info"))
        except RouteMissingError:
            return None

    async def reset_prefix_cache(self) -> None:
        """Forget cached prefixes, which other weights computed."""
        await self._control("POST", "/reset_prefix_cache")
