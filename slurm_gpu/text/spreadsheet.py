"""Texts that spreadsheets would take for formulas, as texts: users choose the names of jobs."""

from __future__ import annotations

import re

# What begins a formula (OWASP, "CSV injection"), also fullwidth, and after blanks.
_FORMULA = re.compile("^\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]")


def defused(text: str) -> str:
    """The text as a spreadsheet shows it and does not compute it: a formula comes after an apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text


def armoured(text: str) -> str:
    """As `defused`, such that `bare` brings back what it was."""
    return f"'{text}" if text.startswith("'") else defused(text)


def bare(text: str) -> str:
    """What `armoured` made a cell of."""
    return text.removeprefix("'")
