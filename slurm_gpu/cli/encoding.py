"""Replace characters that the encoding of the output, such as latin1, lacks."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

_HANDLER = "slurm_gpu_plain"
# Replacements for characters that slurm-gpu prints; the bars of a sparkline become the digits 1 to 8.
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


def replace_unencodable(*streams: TextIO) -> None:
    """Make streams replace unencodable characters with those in _PLAIN, or else with escapes."""
    codecs.register_error(_HANDLER, _plain)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def can_encode(text: str, stream: TextIO) -> bool:
    """Return whether the encoding of `stream` can represent every character of `text`."""
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
