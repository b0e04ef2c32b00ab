"""Read keys while a screen is shown."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LONGEST = 64
_NAMES = {
    "\x1b[6~": "page down",
    "\x1b[5~": "page up",
    "\x1b[B": "down",
    "\x1b[A": "up",
    "\x1b[H": "home",
    "\x1b[F": "end",
}
"""Control sequences that terminals such as xterm send for special keys."""


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for a key, and returns the letter or name of the key.

    The function returns "" if no key is pressed. If standard input is not a terminal, the function
    only waits.
    """
    stream = sys.stdin
    if not stream.isatty():
        yield _none
        return
    number = stream.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield lambda wait_s: _pressed(number, wait_s)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _none(wait_s: float) -> str:
    select.select([], [], [], wait_s)
    return ""


def _pressed(number: int, wait_s: float) -> str:
    ready, _, _ = select.select([number], [], [], wait_s)
    if not ready:
        return ""
    typed = os.read(number, _LONGEST).decode("latin-1")
    if not typed:
        return "q"  # the terminal was closed
    return _NAMES.get(typed, typed[0])
