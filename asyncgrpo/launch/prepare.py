"""Everything that is known of a run before its first process starts.

LoadedRecipe --machine, derive, preflight--> Prepared --served facts--> final configuration
"""

import os
import sys
from dataclasses import dataclass, replace

from asyncgrpo.config import Config, Derivation, Facts, LoadedRecipe, local_facts, resolve
from asyncgrpo.config.facts import has_delta_net, kv_bytes_per_token
from asyncgrpo.launch import machine
from asyncgrpo.launch.checks import preflight
from asyncgrpo.launch.plan import Machine, server_urls
from asyncgrpo.server.capabilities import ServedFacts

MASK_FIELD = "return_sampling_mask"  # of vLLM's model configuration, from 0.28 on


@dataclass(frozen=True)
class Prepared:
    """A run that could start now."""

    recipe: LoadedRecipe
    facts: Facts
    derivation: Derivation
    machine: Machine

    @property
    def config(self) -> Config:
        """The configuration as derived so far."""
        return self.derivation.config

    @property
    def launches_servers(self) -> bool:
        """True if this run launches the servers."""
        return bool(self.machine.ports)

    def with_served(self, served: ServedFacts) -> "Prepared":
        """Derives again with what the servers said of themselves. Raises ConfigError."""
        facts = replace(
            self.facts,
            served_max_model_len=served.max_model_len,
            adapters_refused=served.adapters_refused,
        )
        return replace(self, facts=facts, derivation=resolve(self.recipe, facts))


def prepare(recipe: LoadedRecipe, *, starts: bool = True) -> Prepared:
    """Look at the machine, derive open values, run the checks. Raises ConfigError.

    With `starts` False the run starts elsewhere, so this machine is not checked.
    """
    config = recipe.config
    facts = local_facts(config, cuda_count=machine.cuda_count(), recipe_name=recipe.path.stem)
    ports = () if config.server.urls is not None else _ports(config)
    if ports:
        facts = replace(
            facts, server_port=ports[0], server_urls=server_urls(config.server.host, ports)
        )
    prepared = Prepared(
        recipe,
        facts,
        resolve(recipe, facts),
        Machine(
            sys.executable,
            machine.cpu_cores(),
            ports,
            environ=dict(os.environ),
            kv_bytes_per_token=kv_bytes_per_token(config),
            has_delta_net=has_delta_net(config),
            can_list_masks=bool(ports) and machine.vllm_knows(config.server.python, MASK_FIELD),
        ),
    )
    if starts:
        preflight.check(prepared.config, launch_server=prepared.launches_servers)
    else:
        preflight.check_inputs(prepared.config)
    return prepared


def _ports(config: Config) -> tuple[int, ...]:
    """A port for each server: `server.port` and those after it, or free ones."""
    if config.server.port == "auto":
        ports: list[int] = []
        for _ in range(config.server.replicas):
            ports.append(machine.free_port(config.server.host, ports))
        return tuple(ports)
    return tuple(config.server.port + index for index in range(config.server.replicas))
