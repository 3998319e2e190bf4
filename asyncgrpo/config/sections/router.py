"""`router`: the reverse proxy in front of several servers."""

from typing import Literal

from asyncgrpo.config.sections.base import Auto, EnvironmentVariable, Port, PositiveInt, Section


class RouterConfig(Section):
    """The reverse proxy that makes several servers look like one."""

    enabled: Auto | bool = "auto"
    """`auto` = with several replicas, or where requests need another key."""
    policy: Literal["cost", "prefix_affinity", "least_loaded", "round_robin"] = "cost"
    """How a replica is chosen for a request."""
    imbalance_limit: PositiveInt = 8
    """Requests in flight by which a replica that holds the prompt may lead the idlest."""
    load_weight_tokens: PositiveInt = 40
    """Prompt tokens that one request more in flight weighs as much as."""
    block_size: Auto | PositiveInt = "auto"
    """Tokens per KV block; `auto` = the server's."""
    host: str = "127.0.0.1"
    """Address to bind. Any but loopback needs `api_key_env`."""
    port: Auto | Port = "auto"
    """Port; `auto` = a free one."""
    api_key_env: EnvironmentVariable | None = None
    """Name of the environment variable that holds the key clients must send."""
    upstream_token_env: EnvironmentVariable | None = None
    """Name of the environment variable that holds the token sent to the servers."""
