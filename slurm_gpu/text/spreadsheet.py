"""Texts that spreadsheets would take for formulas, as texts: users choose the names of jobs."""

from __future__ import annotations

import re

# The starts of formulas (OWASP, "CSV injection"), also fullwidth, and after blanks.
_FORMULA = re.compile("^\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]")


def defused(text: str) -> str:
    """Return text that a spreadsheet does not compute: a formula gets an apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text


def armoured(text: str) -> str:
    """As `defused`, such that `bare` brings back what it was."""
    return f"'{text}" if text.startswith("'") else defused(text)


def bare(text: str) -> str:
    """Return the text of a cell that `armoured` made."""
    return text.removeprefix("'")
