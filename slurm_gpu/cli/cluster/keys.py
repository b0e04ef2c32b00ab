"""Read keys while a screen is shown."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# Ctrl-D, which ends the input.
END = "\x04"
_LONGEST = 256
_NAMES = {
    "\x1b[6~": "page down",
    "\x1b[5~": "page up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b": "escape",
    "\t": "tab",
    "\n": "enter",
    "\r": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
"""Characters and control sequences that terminals such as xterm send for special keys."""
_KEY = re.compile("\x1b\\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)


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
    # Keys that arrived together, such as pasted text.
    pending = deque[str]()
    try:
        yield lambda wait_s: _pressed(number, wait_s, pending)
    finally:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(number, termios.TCSADRAIN, before)


def _none(wait_s: float) -> str:
    select.select([], [], [], wait_s)
    return ""


def _pressed(number: int, wait_s: float, pending: deque[str]) -> str:
    if not pending:
        ready, _, _ = select.select([number], [], [], wait_s)
        if not ready:
            return ""
        try:
            typed = os.read(number, _LONGEST).decode("utf-8", "replace")
        except OSError:
            typed = ""
        if not typed:
            return END  # the terminal was closed
        pending.extend(_KEY.findall(typed))
    key = pending.popleft()
    return _NAMES.get(key, key)
