"""Prevent spreadsheets from evaluating texts that users choose, such as job names, as formulas."""

from __future__ import annotations

import re

# The first characters of formulas (OWASP, "CSV injection"), including fullwidth forms and those after blanks.
_FORMULA = re.compile("^\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]")


def defused(text: str) -> str:
    """Put an apostrophe before a formula to keep spreadsheets from evaluating it."""
    return f"'{text}" if _FORMULA.match(text) else text


def armoured(text: str) -> str:
    """Defuse text like `defused`, in a form from which `bare` can restore the original."""
    return f"'{text}" if text.startswith("'") else defused(text)


def bare(text: str) -> str:
    """Return the original of a text that `armoured` returned."""
    return text.removeprefix("'")
