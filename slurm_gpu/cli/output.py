"""How commands print: tables for people, JSON and CSV for programs, remarks on standard error."""

from __future__ import annotations

import csv
import json
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TextIO

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_gpu.cli.encoding import can_encode
from slurm_gpu.errors import UsageError
from slurm_gpu.text.spreadsheet import defused

_DECIMALS = 6
"""Of numbers for programs: an hour's to some milliseconds, a percentage's beyond what anybody measures."""
_PIPE_WIDTH = 100_000
"""In a pipe nothing is wrapped or cut, however long a row."""
_WIDE = 100
_NAME_WIDTH = 6
"""So much of a name is always shown, its … included."""
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
    right: Collection[str] = (),
    whole: Collection[str] = (),
    cut: Collection[str] = (),
    lists: Collection[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """A table without lines; `right` names the columns of numbers. Long values wrap between words.

    Numbers and the columns in `whole` do not even wrap; `lists` of numbers do, into two lines. Those in
    `cut`, such as names, end in … where a terminal has no room for them. Where that is not enough, columns
    are left out in the order of `spare`, and a remark says which.
    """
    numbers, names, unbroken = {*right, *lists}, set(cut), {*right, *whole}
    table_rows = list(rows)
    natural = {
        name: max(cell_len(line) for cell in (name, *cells) for line in cell.splitlines() or [""])
        for name, *cells in zip(columns, *table_rows, strict=True)
    }
    least = {
        name: natural[name] if name in unbroken else _least_width((name, *cells), is_name=name in names)
        for name, *cells in zip(columns, *table_rows, strict=True)
    }
    # A list takes two lines at most.
    least |= {name: max(least[name], natural[name] // 2 + 1) for name in lists}
    screen = console()
    shown, left_out = list(columns), []
    for name in spare:
        if _width(least, shown) <= screen.width:
            break
        if name in shown:
            shown.remove(name)
            left_out.append(name)
    widths = natural
    gap = 2
    if _width(natural, shown, gap) >= screen.width:
        gap = 1
        widths = _shared_out(screen.width, {name: least[name] for name in shown}, natural)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in shown:
        table.add_column(
            name,
            justify="right" if name in numbers else "left",
            overflow="ellipsis" if name in names else "fold",
            width=widths[name],
        )
    for row in table_rows:
        # As Text, so that nothing in a value is taken for a style.
        table.add_row(*(Text(cell) for name, cell in zip(columns, row, strict=True) if name in shown))
    # Rich fills the last column with spaces, which only get in a reader's way.
    with screen.capture() as captured:
        screen.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")), color=True)
    if left_out:
        remark(f"no room for {', '.join(left_out)}: a wider terminal or --json shows all")


def print_sentences(sentences: Iterable[str]) -> None:
    """A line each, behind an empty one; what is longer than the terminal is wide goes on further right."""
    width = console().width
    wrapped = [
        line
        for one in sentences
        for line in textwrap.wrap(one, width, subsequent_indent="  ", break_on_hyphens=False)
    ]
    if wrapped:
        click.echo("\n".join(("", *wrapped)))


def _least_width(cells: Iterable[str], *, is_name: bool) -> int:
    """The column's narrowest: room for its longest word, or for its heading and the beginning of a name."""
    heading, *values = cells
    if is_name:
        return max(cell_len(heading), min(_NAME_WIDTH, max(map(cell_len, values), default=0)))
    return max((cell_len(word) for cell in (heading, *values) for word in cell.split()), default=0)


def _width(widths: Mapping[str, int], columns: Sequence[str], gap: int = 1) -> int:
    return sum(widths[name] for name in columns) + gap * (len(columns) - 1)


def _shared_out(room: int, least: Mapping[str, int], natural: Mapping[str, int]) -> dict[str, int]:
    """Widths that fill the room: what the least leaves goes to the last columns first; they tell the most."""
    widths, left = dict(least), room - _width(least, list(least))
    for name in reversed(widths):
        more = max(0, min(left, natural[name] - widths[name]))
        widths[name] += more
        left -= more
    return widths


def print_json(value: Any) -> None:
    """One indented JSON document; gaps are null, numbers have six decimals at most.

    JSON itself escapes few of the characters that steer a terminal.
    """
    value = _rounded(value)
    document = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    if not can_encode(document, sys.stdout):
        document = json.dumps(value, indent=2, allow_nan=False)  # the same values, escaped
    click.echo(_STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", document))


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """CSV with a header line; a gap is an empty cell, 0 is 0, and numbers are those of the JSON.

    No text is a formula in a spreadsheet.
    """
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = _rounded(row).items()
        writer.writerow({name: defused(cell) if isinstance(cell, str) else cell for name, cell in cells})


def _rounded(value: Any) -> Any:
    """The same with shorter numbers; what is not 0 does not become 0."""
    if isinstance(value, float):
        short = round(value, _DECIMALS)
        return short if short != 0 else value
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def check_format(*, as_json: bool, as_csv: bool) -> None:
    """Raises UsageError where both are asked for."""
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other")


def remark(message: str) -> None:
    """A line for the person, which does not get into the way of the output."""
    click.echo(message, err=True)
