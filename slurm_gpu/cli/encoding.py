"""Output where the terminal's encoding lacks a sign, as with PYTHONIOENCODING=latin1: ASCII in its place."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

_HANDLER = "slurm_gpu_plain"
_PLAIN = {
    "–": "-",
    "−": "-",
    "→": "->",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "×": "x",
    "·": ".",
    "°": "",
    "�": "?",
    "─": "-",
    "│": "|",
    "├": "|",
    "└": "`",
    "▁": "1",
    "▂": "2",
    "▃": "3",
    "▄": "4",
    "▅": "5",
    "▆": "6",
    "▇": "7",
    "█": "8",
}
"""For the signs of our own; of the blocks of a course, 8 is the highest."""


def spell_out(*streams: TextIO) -> None:
    """Have the streams write what they cannot encode in ASCII: our own signs by others, others by number."""
    codecs.register_error(_HANDLER, _plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def can_encode(text: str, stream: TextIO) -> bool:
    """Whether the stream's encoding has every sign of the text."""
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    escaped = (_PLAIN.get(sign, sign.encode("ascii", "backslashreplace").decode()) for sign in signs)
    return "".join(escaped), error.end
