"""Print tables, JSON and CSV on standard output, and remarks on standard error."""

from __future__ import annotations

import csv
import json
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TextIO

import click
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from slurm_gpu.cli.encoding import can_encode
from slurm_gpu.errors import UsageError
from slurm_gpu.text.spreadsheet import defused

# Number of decimals in JSON and CSV: hours are exact to a few milliseconds, and percentages are finer than
# any measurement.
_DECIMALS = 6
# Rows that are written to a pipe are neither wrapped nor cut.
_PIPE_WIDTH = 100_000
_WIDE = 100
# Minimum number of characters shown of a name, including "…".
_NAME_WIDTH = 6
# DEL, C1 controls, and characters that change the direction of text.
_CONTROL_CHARACTERS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def console(stream: TextIO | None = None) -> Console:
    """Return a console on `stream`, which uses colours only on a terminal and if NO_COLOR is not set."""
    out = sys.stdout if stream is None else stream
    width = None if out.isatty() else _PIPE_WIDTH
    return Console(file=out, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def is_narrow() -> bool:
    """Return whether the terminal has fewer than 100 columns."""
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
    remedy: str = "use a wider terminal or --json",
) -> None:
    """Print a table without lines, with long values wrapped between words.

    Columns in `right` are right-aligned numbers; they and the columns in `whole` never wrap. Columns in
    `lists` contain lists of numbers, which wrap into at most two lines. Values in `cut`, such as names, are
    shortened with "…" on a narrow terminal. If the table is still too wide, columns are dropped in the order
    of `spare`, and a remark names them and the `remedy`.
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
        widths = _distributed(screen.width, {name: least[name] for name in shown}, natural)
    kept = [place for place, name in enumerate(columns) if name in shown]
    table_rows = [[row[place] for place in kept] for row in table_rows]
    if widths is natural and not any("\n" in cell for row in table_rows for cell in row):
        _print_lines(screen, [(name, widths[name], name in numbers) for name in shown], table_rows, gap)
    else:
        _print_wrapped(
            screen, [(name, widths[name], name in numbers, name in names) for name in shown], table_rows, gap
        )
    if left_out:
        remark(f"columns not shown: {', '.join(left_out)}; {remedy}")


def _print_lines(
    screen: Console, columns: Sequence[tuple[str, int, bool]], rows: Sequence[Sequence[str]], gap: int
) -> None:
    """Print a line for each row; `columns` are (name, width, whether right-aligned).

    Rich takes a millisecond for each row of a table, which is longer than the rest of a listing.
    """

    def line(cells: Sequence[str]) -> str:
        parts = []
        for cell, (_, width, is_right) in zip(cells, columns, strict=True):
            space = " " * (width - cell_len(cell))
            parts.append(space + cell if is_right else cell + space)
        return Text((" " * gap).join(parts).rstrip()).plain  # without control codes

    with screen.capture() as captured:
        screen.print(Text(line([name for name, *_ in columns]), style="bold"), soft_wrap=True)
    click.echo("\n".join((captured.get().rstrip("\n"), *map(line, rows))), color=True)


def _print_wrapped(
    screen: Console, columns: Sequence[tuple[str, int, bool, bool]], rows: Sequence[Sequence[str]], gap: int
) -> None:
    """Print a table with wrapped cells; `columns` are (name, width, whether right-aligned, whether cut)."""
    from rich.table import Table  # most tables need no wrapping

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name, width, is_right, is_cut in columns:
        justify: Literal["right", "left"] = "right" if is_right else "left"
        table.add_column(name, justify=justify, overflow="ellipsis" if is_cut else "fold", width=width)
    for row in rows:
        table.add_row(*map(Text, row))  # Text keeps rich from interpreting values as markup
    # Rich pads the last column with spaces: strip them.
    with screen.capture() as captured:
        screen.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")), color=True)


def print_sentences(sentences: Iterable[str]) -> None:
    """Print an empty line, then each sentence on its own line; wrapped lines are indented."""
    width = console().width
    wrapped = [
        line
        for one in sentences
        for line in textwrap.wrap(one, width, subsequent_indent="  ", break_on_hyphens=False)
    ]
    if wrapped:
        click.echo("\n".join(("", *wrapped)))


def _least_width(cells: Iterable[str], *, is_name: bool) -> int:
    """Return the minimum width of a column: its longest word, or its heading and shortened names."""
    heading, *values = cells
    if is_name:
        return max(cell_len(heading), min(_NAME_WIDTH, max(map(cell_len, values), default=0)))
    return max((cell_len(word) for cell in (heading, *values) for word in cell.split()), default=0)


def _width(widths: Mapping[str, int], columns: Sequence[str], gap: int = 1) -> int:
    return sum(widths[name] for name in columns) + gap * (len(columns) - 1)


def _distributed(total: int, least: Mapping[str, int], natural: Mapping[str, int]) -> dict[str, int]:
    """Distribute the remaining width, starting with the last columns, which have the longest texts."""
    widths, left = dict(least), total - _width(least, list(least))
    for name in reversed(widths):
        more = max(0, min(left, natural[name] - widths[name]))
        widths[name] += more
        left -= more
    return widths


def print_json(value: Any) -> None:
    """Print one indented JSON document; gaps are null, and numbers have at most six decimals.

    Control characters that JSON does not escape, such as DEL, are escaped to protect terminals.
    """
    value = _rounded(value)
    document = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    if not can_encode(document, sys.stdout):
        document = json.dumps(value, indent=2, allow_nan=False)  # the same values, escaped
    click.echo(_CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", document))


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print CSV with a header line; a gap is an empty cell, and numbers are as in JSON.

    Texts are escaped to keep spreadsheets from interpreting them as formulas.
    """
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = _rounded(row).items()
        writer.writerow({name: defused(cell) if isinstance(cell, str) else cell for name, cell in cells})


def _rounded(value: Any) -> Any:
    """Round numbers to _DECIMALS, except those that would become 0."""
    if isinstance(value, float):
        short = round(value, _DECIMALS)
        return short if short != 0 else value
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def check_format(*, as_json: bool, as_csv: bool) -> None:
    """Raise UsageError if both JSON and CSV are requested."""
    if as_json and as_csv:
        raise UsageError("--json and --csv are mutually exclusive")


def remark(message: str) -> None:
    """Print a line for the user on standard error, separate from the output."""
    click.echo(message, err=True)
