"""The client of one server: all its calls in one object, over one transport.

client_turns     sample and score        -.
client_adapters  load and unload          |--  client_control  --Transport-->  server
client_weights   replace in place         |    (ready, models, load)
client_lease     one run at a time       -'
"""

import os

from asyncgrpo.config import Config
from asyncgrpo.server.client_adapters import AdapterCalls
from asyncgrpo.server.client_lease import LeaseCalls
from asyncgrpo.server.client_turns import OnRetry, TurnCalls
from asyncgrpo.server.client_weights import WeightCalls
from asyncgrpo.server.retries import Retries
from asyncgrpo.server.transport import HttpTransport, Transport


class ServerClient(TurnCalls, AdapterCalls, WeightCalls, LeaseCalls):
    """Talks to the server at `base_url`; use as an async context manager, or `aclose` it."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        retries: Retries | None = None,
        on_retry: OnRetry | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Set up; connections open with the first request.

        Args:
            base_url: of the server, such as http://127.0.0.1:8000.
            api_key: the server's; None where it asks for none.
            timeout_s: the longest that one request may take, and all tries of one together.
            retries: tries of one turn; None for the defaults.
            on_retry: gets each failure of a turn that is tried again.
            transport: the way to the server instead of HTTP; key and timeout are then its own.
        """
        url = base_url.rstrip("/")
        super().__init__(
            url,
            transport or HttpTransport(url, api_key=api_key, timeout_s=timeout_s),
            timeout_s=timeout_s,
            retries=retries or Retries(),
            on_retry=on_retry,
        )


def configured_client(config: Config, url: str, *, on_retry: OnRetry | None = None) -> ServerClient:
    """A client of the run's server at `url`, with the configuration's key and timeout."""
    key_name = config.server.api_key_env
    return ServerClient(
        url,
        api_key=os.environ.get(key_name) if key_name else None,
        timeout_s=config.server.vllm_server_timeout,  # a long turn takes as long as it takes
        on_retry=on_retry,
    )
