"""The lease of one server: claimed, renewed and given back by a launcher."""

import msgspec

from asyncgrpo.errors import ServerError
from asyncgrpo.server.client_control import ControlCalls
from asyncgrpo.server.failures import RouteMissingError
from asyncgrpo.server.lease import PATH, Claim, Holder


class LeaseCalls(ControlCalls):
    """The call of a launcher."""

    async def claim(self, claim: Claim) -> Holder | None:
        """The holder after a claim; None where the server has no lease to give.

        It has one with the middleware of the packed endpoint.
        """
        try:
            answer = await self._control("POST", PATH, msgspec.to_builtins(claim))
        except RouteMissingError:
            return None
        try:
            return msgspec.json.decode(answer, type=Holder)
        except msgspec.DecodeError as error:
            raise ServerError(f"{self.base_url}{PATH} answers no lease: {error}") from error
