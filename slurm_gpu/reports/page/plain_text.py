"""Make text from users safe to display."""

from __future__ import annotations

import re

# Control characters (line ends, escapes, NUL), characters that change the writing direction, halves of
# surrogate pairs, and two code points that are invalid in XML. These characters are written as escapes of
# Python strings.
_NOT_SHOWN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    """Return the text with control characters escaped; a newline becomes a backslash and n, for example."""
    return _NOT_SHOWN.sub(_spelled, text)


def _spelled(match: re.Match[str]) -> str:
    sign = match[0]
    if sign in _SHORT:
        return _SHORT[sign]
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
