"""Write plain values as Lua literals that mean the same in Lua 5.1 to 5.4 and contain only data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Plain = None | bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"] | Mapping[int, "Plain"]


def to_lua(value: Plain, indent: int = 0) -> str:
    """Return a Lua expression for the value; None in a mapping is left out, as in Lua tables.

    In strings, quotes, backslashes and all bytes except printable ASCII are written as numbers, so no content
    can end the string.
    """
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be written as a Lua number")
        return repr(value)
    if isinstance(value, str):
        return lua_string(value)
    pad, inner = "  " * indent, "  " * (indent + 1)
    if isinstance(value, Mapping):
        items = [
            f"[{to_lua(key)}] = {to_lua(item, indent + 1)}" for key, item in value.items() if item is not None
        ]
    else:
        items = [to_lua(item, indent + 1) for item in value]
    if not items:
        return "{}"
    flat = "{ " + ", ".join(items) + " }"
    if len(flat) + len(inner) <= 100 and "\n" not in flat:
        return flat
    return "{\n" + "".join(f"{inner}{item},\n" for item in items) + pad + "}"


def lua_string(text: str) -> str:
    """Return a double-quoted Lua string of the UTF-8 bytes of `text`."""
    # An escape \ddd has up to three digits. After exactly three, a following digit is not part of the escape.
    safe = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03d}"
        for byte in text.encode("utf-8", "surrogatepass")
    )
    return '"' + "".join(safe) + '"'
