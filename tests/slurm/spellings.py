"""Equivalent spellings of one line of slurm.conf, with the same meaning for slurmctld."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Pair = tuple[str, str]


def _same(text: str) -> str:
    return text


def _quoted(value: str) -> str:
    return f'"{value}"'


def _escaped(value: str) -> str:
    return "".join(f"\\{c}" for c in value)


@dataclass(frozen=True, slots=True)
class Spelling:
    """A way to write keys, equals signs, values, the space between pairs, and line ends."""

    name: str
    equals: str = "="
    key: Callable[[str], str] = _same
    value: Callable[[str], str] = _same
    gap: str = " "
    before: str = ""
    after: str = "\n"

    def line(self, key: str, value: str, *pairs: Pair) -> str:
        """Return the line in this spelling, with its end."""
        written = (f"{self.key(k)}{self.equals}{self.value(v)}" for k, v in ((key, value), *pairs))
        return self.before + self.gap.join(written) + self.after


SPELLINGS = (
    Spelling("plain"),
    Spelling("lower case", key=str.lower),
    Spelling("upper case", key=str.upper),
    Spelling("swapped case", key=str.swapcase),
    Spelling("space before =", equals=" ="),
    Spelling("space after =", equals="= "),
    Spelling("spaces around =", equals=" = "),
    Spelling("tab before =", equals="\t="),
    Spelling("tab after =", equals="=\t"),
    Spelling("tabs around =", equals="\t=\t"),
    Spelling("many blanks", equals="  \t =  \t ", gap=" \t  "),
    Spelling("+=", equals="+="),
    Spelling("space before +=", equals=" += "),
    Spelling("-=", equals="-="),
    Spelling("*=", equals="*="),
    Spelling("/=", equals="/="),
    Spelling("quotes", value=_quoted),
    Spelling("quotes and spaces", value=_quoted, equals=" = "),
    Spelling("quotes and tabs", value=_quoted, equals="\t=\t", gap="\t"),
    Spelling("quotes, lower case", value=_quoted, key=str.lower),
    Spelling("escapes", value=_escaped),
    Spelling("escapes in quotes", value=lambda value: _quoted(_escaped(value))),
    Spelling("tabs between pairs", gap="\t"),
    Spelling("indented", before=" \t "),
    Spelling("blanks at the end", after=" \t \n"),
    Spelling("Windows line end", after="\r\n"),
    Spelling("comment", after=" # Weight=7 Prolog=/no\n"),
    Spelling("comment at once", after="#Weight=7\\\n"),
    Spelling("continued between pairs", gap=" \\\n "),
    Spelling("continued, Windows line end", gap=" \\\r\n", after="\r\n"),
    Spelling("continued after =", equals="=\\\n"),
    Spelling("continued before =", equals=" \\  \n\t= "),
    Spelling("continued in the value", value=lambda value: f"{value[:1]}\\\n{value[1:]}"),
    Spelling("continued before a comment", equals="=\\ # comment\n"),
    Spelling("no line end", after=""),
)
