"""Show the progress of long commands, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from slurm_gpu.cli.output import console


@contextmanager
def status_line() -> Iterator[Callable[[str], object]]:
    """Yield a function that shows the current step; the line disappears at the end."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    with console(sys.stderr).status("…") as status:
        yield lambda step: status.update(step)


def progress_bar() -> Progress:
    """Return a progress bar, disabled unless standard error is a terminal."""
    screen = console(sys.stderr)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
