"""What a long command is doing, on a terminal; nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from slurm_gpu.cli.output import console


@contextmanager
def telling() -> Iterator[Callable[[str], object]]:
    """Call what it gives with what comes next; the line goes when all is done."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    with console(sys.stderr).status("…") as status:
        yield lambda what: status.update(what)


def progress_bar() -> Progress:
    """A bar on a terminal; nothing in a pipe or a log."""
    screen = console(sys.stderr)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
