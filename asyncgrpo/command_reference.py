"""The commands reference, printed from the command line: `python -m asyncgrpo.command_reference`.

cli.app --each command's help--> docs/commands.md
"""

import typer
from typer.testing import CliRunner

from asyncgrpo.cli import app

INTRODUCTION = """\
# Commands

    asyncgrpo train recipes/demo.yaml

This page is printed from the commands' own help by
`python -m asyncgrpo.command_reference > docs/commands.md`.

| exit code | means |
|---|---|
| 0 | success; also a run stopped with Ctrl-C once |
| 1 | a run that failed, or was stopped with Ctrl-C twice |
| 2 | a usage or configuration error: nothing was started |

`KEY=VALUE` replaces a key of the recipe, with a YAML value: `trainer.max_steps=20`,
`'server.devices=[0,1]'`. An error is one message on stderr; `--debug` shows where it arose.

While a run is on, Ctrl-C once finishes the step, saves a checkpoint and stops; twice stops now.
"""


def page() -> str:
    """The whole page, as Markdown."""
    group = typer.main.get_command(app)
    names = list(getattr(group, "commands", {}))
    sections = [_section([], "asyncgrpo"), *(_section([name], name) for name in names)]
    return "\n".join([INTRODUCTION, *sections])


def _section(arguments: list[str], title: str) -> str:
    shown = CliRunner().invoke(
        app, [*arguments, "--help"], prog_name="asyncgrpo", env={"COLUMNS": "100"}
    )
    text = "\n".join(f"    {line}".rstrip() for line in shown.output.strip().splitlines())
    return f"## {title}\n\n{text}\n"


if __name__ == "__main__":
    print(page(), end="")
