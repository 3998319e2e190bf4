"""The errors a user can meet.

    UserError ─┬─ ConfigError        the recipe or the command line      exit code 2
               ├─ DataError          a row, a column, a prompt
               ├─ HookError          a reward, tool, environment or loop of the user's
               ├─ ServerError        a server gave a wrong answer
               ├─ SyncError          the served weights are not those published
               ├─ CheckpointError    a run directory or checkpoint that cannot be used
               └─ RunError           a run that ended before its end     exit code 1

A message says what was got, what was expected, and what to change. The command line prints a
`UserError` as one message; any other exception is a bug and shows its traceback. `--debug` shows
the traceback of both.
"""


class UserError(Exception):
    """Something the user can mend; `str(error)` is the whole message."""


class ConfigError(UserError):
    """The recipe, an override or a flag is wrong; nothing was started."""


class DataError(UserError):
    """A row, column or prompt of the dataset cannot be used."""


class HookError(UserError):
    """A function of the user's (reward, tool, environment, loop) broke its contract.

    `cause` is the same for all failures of one cause, whatever numbers and names its messages hold.
    """

    def __init__(self, message: str, *, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = message if cause is None else cause


class ServerError(UserError):
    """A server refused, failed, or lacks a flag this run needs."""


class SyncError(UserError):
    """A publish failed, or a server serves other weights than those published."""


class CheckpointError(UserError):
    """A run directory or checkpoint is missing, corrupt, incomplete or in use."""


class RunError(UserError):
    """The run could not go on; the message names the first failure."""


MOST_CHARACTERS = 2000


def describe_error(error: BaseException) -> str:
    """The text of an exception, short enough for logs and messages.

    >>> describe_error(KeyError("answer"))
    "KeyError: 'answer'"
    """
    try:
        words = str(error)
    except Exception as worse:  # noqa: BLE001 - __str__ is its author's code
        words = f"(it cannot be printed: {type(worse).__name__})"
    cut = words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}..."
    return f"{type(error).__name__}: {cut}"
