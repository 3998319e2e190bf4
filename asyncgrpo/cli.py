"""The commands. Each imports what it needs when it runs: `--help` must stay fast.

exit code  0  success     1  a failed run     2  a usage or configuration error
"""

import contextlib
import errno
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from asyncgrpo.errors import CheckpointError, ConfigError, DataError, UserError
from asyncgrpo.process.log_format import DEBUG_VARIABLE

SUCCESS, FAILED_RUN, USAGE_ERROR = 0, 1, 2
NOTHING_STARTED = (ConfigError, CheckpointError, DataError)  # when the launcher raises them
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: asyncgrpo train recipes/demo.yaml",
)


class Keyed(TyperCommand):
    """A command with keys of a recipe; it knows one written as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, parsed."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # of the error for no such option
            if option is not None:
                from asyncgrpo.config.other_names import key_of_option

                error.message = f"No such option: {option}; {key_of_option(option)}"  # pyright: ignore[reportAttributeAccessIssue]
            raise


Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe in YAML.")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys of the recipe to set otherwise, such as trainer.max_steps=20.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")
]
NoCheckpoints = Annotated[
    bool,
    typer.Option("--no-checkpoints", help="Accept checkpoint.save_steps: null, saving nothing."),
]


@app.callback(invoke_without_command=True)
def version(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Post-train a language model with GRPO while a vLLM server keeps generating."""
    if version:
        from importlib.metadata import version as installed

        print(f"asyncgrpo {installed('asyncgrpo')}")
        raise typer.Exit(SUCCESS)


@app.command(cls=Keyed, epilog="Example: asyncgrpo train recipes/demo.yaml trainer.max_steps=20")
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    *,
    dry_run: DryRun = False,
    no_checkpoints: NoCheckpoints = False,
    debug: Debug = False,
) -> None:
    """Start every process of a run: servers, worker, trainer. Writes the run directory."""
    with _errors_reported(debug=debug):
        from asyncgrpo.launch import commands

        _exit(
            succeeded=commands.train(
                recipe, overrides or [], dry_run=dry_run, no_checkpoints=no_checkpoints
            )
        )


@app.command(cls=Keyed, epilog="Example: asyncgrpo serve recipes/demo.yaml server.port=8000")
def serve(
    recipe: Recipe,
    overrides: Overrides = None,
    *,
    dry_run: DryRun = False,
    debug: Debug = False,
) -> None:
    """Start the vLLM side alone, with the flags that the recipe needs."""
    with _errors_reported(debug=debug):
        from asyncgrpo.launch import commands

        commands.serve(recipe, overrides or [], dry_run=dry_run)


@app.command(cls=Keyed, epilog="Example: asyncgrpo resume runs/demo trainer.max_steps=200")
def resume(
    run_dir: RunDir,
    overrides: Overrides = None,
    *,
    checkpoint: Annotated[
        int | None,
        typer.Option("--checkpoint", metavar="STEP", help="Go on from it; default: the newest."),
    ] = None,
    no_checkpoints: NoCheckpoints = False,
    debug: Debug = False,
) -> None:
    """Continue a run from its directory alone."""
    with _errors_reported(debug=debug):
        from asyncgrpo.launch import commands

        _exit(
            succeeded=commands.resume(
                run_dir, overrides or [], checkpoint=checkpoint, no_checkpoints=no_checkpoints
            )
        )


@app.command(cls=Keyed, epilog="Example: asyncgrpo validate recipes/demo.yaml --try")
def validate(
    recipe: Recipe,
    overrides: Overrides = None,
    *,
    try_code: Annotated[
        bool,
        typer.Option(
            "--try", help="Import your code and score the right answer and an empty one of rows."
        ),
    ] = False,
    rows: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="With --try: that many rows.")
    ] = 3,
    completion: Annotated[
        list[str] | None,
        typer.Option("--completion", metavar="TEXT", help="With --try: score it too; repeatable."),
    ] = None,
    no_checkpoints: NoCheckpoints = False,
    debug: Debug = False,
) -> None:
    """Print all errors of a recipe, else the values derived for it."""
    with _errors_reported(debug=debug):
        from asyncgrpo.launch.validate import TrialOrder
        from asyncgrpo.launch.validate import validate as look

        if completion and not try_code:
            raise ConfigError("--completion: got without --try, which scores it; add --try")
        trial = TrialOrder(rows, completion or ()) if try_code else None
        look(recipe, overrides or [], no_checkpoints=no_checkpoints, trial=trial)


@app.command(epilog="Example: asyncgrpo diagnose runs/demo")
def diagnose(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="A run directory, or a file of metrics: .jsonl or .csv. The word `metrics` "
            "may stand before it.",
        ),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Name the side that holds a run back, and the change to make."""
    with _errors_reported(debug=debug):
        from asyncgrpo.diagnose.findings import diagnose as find
        from asyncgrpo.diagnose.read import read_history
        from asyncgrpo.diagnose.text import to_json, to_text

        found = find(read_history(_path_of(what)))
        print(to_json(found) if as_json else to_text(found))


def main() -> None:
    """Run the command line."""
    app(prog_name="asyncgrpo")


def _path_of(what: list[str]) -> Path:
    """`metrics PATH` or `PATH`."""
    match what:
        case ["metrics", path] | [path]:
            return Path(path)
        case _:
            raise ConfigError(f"diagnose: got {' '.join(what)!r}, expected [metrics] PATH")


@contextlib.contextmanager
def _errors_reported(*, debug: bool) -> Generator[None]:
    """Turn a user's mistake into a message and an exit code; `debug` shows its traceback."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        yield
    except UserError as error:
        if debug:
            raise
        told = str(error).splitlines() if isinstance(error, ConfigError) else [str(error)]
        print(*(f"error: {line}" for line in told), sep="\n", file=sys.stderr)
        code = USAGE_ERROR if isinstance(error, NOTHING_STARTED) else FAILED_RUN
        raise typer.Exit(code) from None
    except OSError as error:
        if debug or error.errno not in DISK_ERRORS:
            raise
        hint = "make room, or choose another folder with run.dir=PATH"
        print(f"error: {error.filename or 'the disk'}: {error.strerror}; {hint}", file=sys.stderr)
        raise typer.Exit(FAILED_RUN) from None


def _exit(*, succeeded: bool) -> None:
    raise typer.Exit(SUCCESS if succeeded else FAILED_RUN)
