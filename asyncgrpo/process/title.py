"""The names by which a run's processes are found in `ps` and `top`."""

import setproctitle


def process_title(name: str, run: str) -> str:
    """The title of process `name` of a run.

    >>> process_title("worker-1", "demo")
    'asyncgrpo: worker-1 demo'
    """
    return f"asyncgrpo: {name} {run}"


def take_title(title: str) -> None:
    """Shows this process under `title`."""
    setproctitle.setproctitle(title)
