"""How commands print: tables for people, JSON and CSV for programs, remarks on standard error."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_gpu.errors import UsageError

_PIPE_WIDTH = 100_000
"""In a pipe nothing is wrapped or cut, however long a row."""
_WIDE = 100
# DEL and the C1 controls, and what turns the direction of writing.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def console(stream: TextIO | None = None) -> Console:
    """Standard output as it is now: colours on a terminal only (and not with NO_COLOR)."""
    out = sys.stdout if stream is None else stream
    width = None if out.isatty() else _PIPE_WIDTH
    return Console(file=out, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def is_narrow() -> bool:
    """Whether this is a terminal with little more than the usual 80 columns."""
    return console().width < _WIDE


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    whole: Iterable[str] = (),
    cut: Iterable[str] = (),
) -> None:
    """A table without lines; `right` names the columns of numbers. Long values wrap.

    Numbers and the columns in `whole` do not even wrap. Those in `cut`, such as names, end in … where a
    terminal has no room for them.
    """
    numbers, unbroken, names = set(right), {*right, *whole}, set(cut)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in numbers else "left",
            overflow="ellipsis" if column in names else "fold",
            no_wrap=column in unbroken,
        )
    for row in rows:
        # As Text, so that nothing in a value is taken for a style.
        table.add_row(*(Text(cell) for cell in row))
    screen = console()
    if screen.measure(table).maximum >= screen.width:
        table.padding = (0, 1, 0, 0)
    # Rich fills the last column with spaces, which only get in a reader's way.
    with screen.capture() as captured:
        screen.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")), color=True)


def print_json(value: Any) -> None:
    """One indented JSON document; gaps are null.

    JSON itself escapes few of the characters that steer a terminal.
    """
    document = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    click.echo(_STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", document))


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """CSV with a header line; a gap is an empty cell, 0 is 0."""
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row)


def check_format(*, as_json: bool, as_csv: bool) -> None:
    """Raises UsageError where both are asked for."""
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other")


def remark(message: str) -> None:
    """A line for the person, which does not get into the way of the output."""
    click.echo(message, err=True)
