"""Prevent spreadsheets from evaluating texts as formulas, since users choose the names of jobs."""

from __future__ import annotations

import re

# The first characters of formulas (OWASP, "CSV injection"), also in fullwidth form or after blanks.
_FORMULA = re.compile("^\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]")


def defused(text: str) -> str:
    """Return text that a spreadsheet does not evaluate: a formula gets an apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text


def armoured(text: str) -> str:
    """Like `defused`, but reversible by `bare`."""
    return f"'{text}" if text.startswith("'") else defused(text)


def bare(text: str) -> str:
    """Return the original text of a cell from `armoured`."""
    return text.removeprefix("'")
