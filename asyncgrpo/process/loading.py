"""The start of a process: garbage is collected once what stays is loaded.

    load_without_collecting() --> imports --> collect_from_now() --> the work

What is imported stays. To look for garbage in it while it grows takes a fifth of the time to start,
and afterwards holds up every loop of the process for as long as it takes to look through.
"""

import gc


def load_without_collecting() -> None:
    """Garbage collection stops until `collect_from_now`."""
    gc.disable()


def collect_from_now() -> None:
    """Garbage collection starts, and never looks at what is there already."""
    gc.freeze()
    gc.enable()
