"""The checks before anything is started: all problems at once, a line each.

    import_paths, tool_source, loop_source    the user's code, by its source   ─┐
    own_functions                             the user's formulas, likewise    ─┤
    model_folder, and what the model cannot   the model                        ─┤ check_inputs
    prompts_file, reward_columns, rendering   the prompts                      ─┘
    this_machine                              vLLM, ports, devices, disk, keys ─── check

Paths of models, data and `./file.py:name` were checked when the recipe was read.
"""

from collections.abc import Iterator, Mapping

from asyncgrpo.config import Config
from asyncgrpo.config.facts import attention_softcap, vocabulary_size
from asyncgrpo.config.sections.environments import sources_by_key
from asyncgrpo.errors import ConfigError
from asyncgrpo.launch.checks import (
    import_paths,
    loop_source,
    model_folder,
    own_functions,
    prompts_file,
    rendering,
    reward_columns,
    this_machine,
    tool_source,
)
from asyncgrpo.rollout.tools.environment_kind import COLUMN


def check(config: Config, *, launch_server: bool) -> None:
    """Raise ConfigError with a line for each thing that is wrong."""
    _raise([*_input_problems(config), *this_machine.problems(config, launch_server=launch_server)])


def check_inputs(config: Config) -> None:
    """The checks that need nothing of this machine: modules, model, prompts. Raises ConfigError."""
    _raise([*_input_problems(config)])


def _raise(problems: list[str]) -> None:
    if problems:
        raise ConfigError("\n".join(problems))


def _input_problems(config: Config) -> Iterator[str]:
    yield from import_paths.problems(config)
    yield from tool_source.problems(
        config.rollout.tools, sources_by_key(config.rollout.environments)
    )
    if config.rollout.loop is not None and (found := loop_source.problem(config.rollout.loop)):
        yield found
    yield from own_functions.problems(config)
    yield from model_folder.problems(config)
    yield from _softcap_problems(config)
    yield from _vocabulary_problems(config)
    has_environments = config.rollout.environments is not None
    looked = prompts_file.look(config.data, environment_prompts=has_environments)
    if looked.problem is not None:
        yield looked.problem
    yield from rendering.problems(config, looked.first)
    if looked.reward_columns is not None:
        yield from reward_columns.problems(config.rollout.rewards, looked.reward_columns)
        yield from _environment_column_problems(config, looked.reward_columns)


def _softcap_problems(config: Config) -> Iterator[str]:
    if config.model.attn_backend != "varlen":
        return
    if (cap := attention_softcap(config)) is not None:
        yield (
            f"model.attn_backend: got varlen, and {config.model.name_or_path} caps its attention "
            f"scores at {cap:g}, which varlen cannot; use auto, sdpa or flash_attn"
        )


def _vocabulary_problems(config: Config) -> Iterator[str]:
    """Requests for more tokens than the vocabulary has: they end vLLM's engine."""
    size = vocabulary_size(config)
    asked = {
        "rollout.top_k": config.rollout.top_k,
        "loss.num_sampler_logprobs": config.loss.requested_logprobs,
    }
    for key, count in asked.items():
        if size is not None and count > size:
            yield (
                f"{key}: got {count}, and {config.model.name_or_path} has {size} tokens; "
                "expected at most as many"
            )


def _environment_column_problems(config: Config, columns: tuple[str, ...]) -> Iterator[str]:
    by_column = isinstance(config.rollout.environments, Mapping)
    if by_column and COLUMN not in columns:
        yield (
            f"rollout.environments: several are chosen by the column `{COLUMN}`, and "
            f"{config.data.path} has {', '.join(f'`{name}`' for name in columns) or 'no other'}; "
            "add it, or name one class"
        )
