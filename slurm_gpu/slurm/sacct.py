"""Define the columns that `sacct` prints, and parse its rows into AccountingRun.

The delimiter is a random word per call, so that no job name, comment or newline can forge a column.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slurm_gpu.errors import SlurmError
from slurm_gpu.plausible import MAX_MOMENT_S
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.slurm.tres import parse_job_tres
from slurm_gpu.text.hostlist import expand
from slurm_gpu.text.units import parse_slurm_time

log = logging.getLogger(__name__)

_JOB_ID = re.compile(r"(?P<base>[0-9]+)(?:_(?P<task>[0-9]+|\[.*\]))?(?:\+(?P<offset>[0-9]+))?")
# Number of parsed texts, such as TRES, that are cached because many rows have them.
_MAX_CACHED = 4096
# Maximum number of unreadable rows that one call logs; one more line reports the total.
_MAX_LOGGED = 20
# MAX_SLURM_NODES of slurm.h.
_MOST_NODES = 65536
# Maximum logged characters of an unreadable row: enough for a whole row without a long comment.
_SHOWN_CHARACTERS = 2000

_logged_columns: set[str] = set()


def _is_whole(text: str) -> bool:
    return text.isdigit() and text.isascii()


def _number(text: str) -> int:
    if not _is_whole(text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _epoch(text: str) -> int | None:
    """Return a time; None for a word such as Unknown."""
    if text == "" or text.isalpha():
        return None
    return _at_most(_number(text)) or None


def _at_most(value: int) -> int:
    # Times, durations and job IDs of Slurm are never larger.
    if value > MAX_MOMENT_S:
        raise ValueError(f"{value} is too large: as a time it is after the year 9998")
    return value


def _whole(text: str) -> int | None:
    """Parse a 32-bit number, a uid or a number of restarts; return None for an empty column."""
    value = _number(text) if text else None
    if value is not None and value >> 32:
        raise ValueError(f"{text} has more than 32 bits")
    return value


def _seconds(text: str) -> int:
    try:  # sacct prints Suspended as [D-]HH:MM:SS
        return int(parse_slurm_time(text)) if text else 0
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _limit(text: str) -> int | None:
    # TimelimitRaw is whole minutes, or a word such as UNLIMITED or Partition_Limit.
    return None if text.replace("_", "").isalpha() or not text else _at_most(_number(text) * 60)


def _state(text: str) -> str:
    """Return the state without the text after it, as in "CANCELLED by 1001"."""
    return text.partition(" ")[0]


def _node_count(text: str) -> int:
    number = _number(text)
    if number > _MOST_NODES:
        raise ValueError(f"{number} is more than the {_MOST_NODES} nodes that Slurm can manage")
    return number


def _nodes(text: str) -> str:
    return "" if text == "None assigned" else text


Column = Sequence[str]
Values = Iterable[Any]


class _ParsedTexts(dict[str, Any]):
    """Cache of parsed texts. Rows share the parsed objects, so callers must not change them."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: str) -> Any:
        if len(self) >= _MAX_CACHED:
            self.clear()
        value = self[text] = self._read(text)
        return value


def _cached(read: Callable[[str], Any]) -> Callable[[Column], Values]:
    """Return a parser for a column that contains few distinct texts."""
    parsed = _ParsedTexts(read)
    return lambda column: map(parsed.__getitem__, column)


def _numbers(column: Column) -> Values:
    values = list(map(int if _is_whole("".join(column)) else _number, column))
    _at_most(max(values, default=0))
    return values


def _epochs(column: Column) -> Values:
    if _is_whole("".join(column)) and "" not in column:
        values = list(map(int, column))
        _at_most(max(values))
        return [value or None for value in values]
    return map(_epoch, column)


def _texts(column: Column) -> Values:
    return column


# Whole columns are parsed at once: a call for each word of each row would dominate the run time.
_COLUMNS: Mapping[str, tuple[str, Callable[[Column], Values]]] = {
    "Cluster": ("cluster", _texts),
    "JobIDRaw": ("job_id", _numbers),
    "JobName": ("name", _texts),
    "User": ("user", _texts),
    "UID": ("uid", _cached(_whole)),
    "Account": ("account", _texts),
    "QOS": ("qos", _texts),
    "Partition": ("partition", _texts),
    "State": ("state", _cached(_state)),
    "ExitCode": ("exit_code", _texts),
    "Submit": ("submit_s", _numbers),
    "Eligible": ("eligible_s", _epochs),
    "Start": ("start_s", _epochs),
    "End": ("end_s", _epochs),
    "ElapsedRaw": ("elapsed_s", _numbers),
    "Suspended": ("suspended_s", _cached(_seconds)),
    "TimelimitRaw": ("time_limit_s", _cached(_limit)),
    "NNodes": ("n_nodes", _cached(_node_count)),
    "NodeList": ("nodes", _cached(_nodes)),
    "ReqTRES": ("tres_requested", _cached(parse_job_tres)),
    "AllocTRES": ("tres_allocated", _cached(parse_job_tres)),
    "AdminComment": ("admin_comment", _texts),
}
_OPTIONAL: Mapping[str, tuple[str, Callable[[Column], Values]]] = {
    "Restarts": ("restart", _cached(_whole)),
    "SLUID": ("sluid", lambda column: [text or None for text in column]),
}
_IDS = "array_job_id", "array_task", "het_job_id", "het_offset"
# A row without a required column is not a run; an unreadable optional column is left out of its row.
_UNREQUIRED = frozenset({*_COLUMNS, *_OPTIONAL}) - {"Cluster", "JobIDRaw", "Submit"}
# Replacements for unreadable words, by column; "" for other columns. _completed then computes the value.
_UNKNOWN_WORDS = {"ElapsedRaw": "0", "NNodes": "0"}


def columns(available: str) -> list[str]:
    """Return the columns to request, from the output of `sacct --helpformat`; newer versions have more."""
    names = set(available.split())
    return ["JobID", *_COLUMNS, *(name for name in _OPTIONAL if name in names)]


def parse_rows(pieces: Iterable[str], names: Sequence[str], mark: str) -> Iterator[AccountingRun]:
    """Yield the runs in the output of `sacct --parsable --delimiter=<mark>`: every column ends with the mark.

    The text comes in pieces of any length. Text that is not a row, and rows without a readable job ID,
    cluster or submit time, are logged and left out. Any other unreadable column is left out of its row, and
    logged once per column. Raise SlurmError if the output contains no row.
    """
    read = _reader(names)
    n_rows, n_unreadable, problem = 0, 0, ""
    for rows in _split(pieces, len(names), mark):
        unreadable: list[tuple[str, str]] = []
        if isinstance(rows, str):
            unreadable.append((f"sacct printed text that is not a row of {len(names)} columns", rows))
        else:
            n_rows += len(rows)
            try:
                yield from read(rows)
            except ValueError:
                yield from _readable(read, names, rows, unreadable)
        for problem, text in unreadable:
            n_unreadable += 1
            if n_unreadable <= _MAX_LOGGED:
                _log_row_once(problem, text[:_SHOWN_CHARACTERS])
    if n_unreadable > _MAX_LOGGED:
        _log_row_once(f"sacct: {n_unreadable} rows cannot be read, the last with this error", problem)
    if n_unreadable and not n_rows:
        raise SlurmError(problem)


@functools.lru_cache(maxsize=1024)
def _log_row_once(problem: str, text: str) -> None:
    """Log an unreadable row, once for all calls, so that it does not fill the log."""
    log.warning("%s; left out: %r", problem, text)


def _split(pieces: Iterable[str], width: int, mark: str) -> Iterator[list[list[str]] | str]:
    """Yield lists of rows of `width` words, and any text that is not a row as a string.

    A row normally ends with the mark and a newline. If a row is misaligned, because a name begins with a
    newline, the remaining text is searched for rows.
    """
    rest, end, coming = "", f"{mark}\n", iter(pieces)
    for piece in coming:
        text = rest + piece
        whole, found, after = text.rpartition(end)
        rows = [row.split(mark) for row in whole.split(end)] if found else []
        if any(len(row) != width or "\n" in row[0] for row in rows):
            rest = text
            break
        rest = after
        if rows:
            yield rows
    yield from _search(itertools.chain([rest], coming), width, mark)


def _search(pieces: Iterable[str], width: int, mark: str) -> Iterator[list[list[str]] | str]:
    """Yield the same values as _split from text that does not consist only of rows.

    A row begins on a new line, but names and comments have newlines too. Words are therefore counted, and the
    beginning of a row is searched for only if the next row is misaligned.
    """
    words, rest = list[str](), "\n"
    for piece in itertools.chain(pieces, [None]):
        if piece is None:
            words.append(rest)
        else:
            *more, rest = (rest + piece).split(mark)
            words += more
        start = 0
        rows = list[list[str]]()
        while len(words) - start > width:
            end = start + width
            if words[start][:1] == "\n" == words[end][:1]:
                before, _, words[start] = words[start].rpartition("\n")  # a job ID has one line
                if before.strip():
                    yield before[1:]
                rows.append(words[start:end])
            else:
                found = _next_row(words, start + 1, width)
                if found is not None:
                    end = found
                    before, newline, last = words[end].rpartition("\n")
                    yield mark.join((*words[start:end], before)).strip("\n")
                    words[end] = newline + last
                elif piece is None or len(words) - start >= 4 * width:
                    end = max(end, len(words) - 2 * width)
                    yield mark.join(words[start:end]).strip("\n")
                else:
                    break  # wait for more text
            start = end
        if rows:
            yield rows
        del words[:start]
    if left := mark.join(words).strip():
        yield left


def _next_row(words: Sequence[str], start: int, width: int) -> int | None:
    """Return the index of the first row, at `start` or later, that is followed by another row or the end."""
    for index in range(start, len(words) - width):
        _, newline, last = words[index].rpartition("\n")
        if newline and words[index + width][:1] == "\n" and _JOB_ID.fullmatch(last):
            return index
    return None


def _reader(names: Sequence[str]) -> Callable[[Sequence[Sequence[str]]], list[AccountingRun]]:
    """Return a function that turns rows of words into runs and raises ValueError for unreadable rows."""
    first, *others = names
    assert first == "JobID"
    fields = [_COLUMNS.get(name) or _OPTIONAL[name] for name in others]

    def read(rows: Sequence[Sequence[str]]) -> list[AccountingRun]:
        shown, *columns = zip(*rows, strict=True)
        values: dict[str, Iterable[Any]] = dict(zip(_IDS, zip(*map(_ids, shown), strict=True), strict=True))
        for (name, of), column in zip(fields, columns, strict=True):
            values[name] = of(column)
        ordered = [values.get(name, itertools.repeat(None)) for name in AccountingRun._fields]
        return list(map(AccountingRun._make, zip(*ordered, strict=False)))

    return read


def _readable(
    read: Callable[[Sequence[Sequence[str]]], list[AccountingRun]],
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    unreadable: list[tuple[str, str]],
) -> Iterator[AccountingRun]:
    """Yield the runs of rows with a readable key; append all other rows, with reasons, to `unreadable`."""
    for words in rows:
        try:
            yield from read([words])
        except ValueError:
            bad = _unreadable_columns(names, words)
            if bad.keys() <= _UNREQUIRED:
                for name, why in bad.items():
                    _log_column_once(name, words[0], why)
                kept = [
                    _UNKNOWN_WORDS.get(name, "") if name in bad else word
                    for name, word in zip(names, words, strict=True)
                ]
                for run in read([kept]):
                    yield _completed(run, bad)
            else:
                why = "; ".join(f"{name}: {why}" for name, why in bad.items() if name not in _UNREQUIRED)
                unreadable.append((f"sacct: job {words[0]}, {why}", "|".join(words)))


def _unreadable_columns(names: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """Return the names of the unreadable columns of a row, and why each of them cannot be read."""
    bad: dict[str, str] = {}
    for name, word in zip(names, words, strict=True):
        try:
            if name == "JobID":
                _ids(word)
            else:
                _, read = _COLUMNS.get(name) or _OPTIONAL[name]
                list(read([word]))
        except ValueError as error:
            bad[name] = str(error)
    return bad


def _log_column_once(name: str, job: str, why: str) -> None:
    """Log an unreadable column only once, since each call finds it again."""
    if name not in _logged_columns:
        _logged_columns.add(name)
        message = "sacct: job %s, %s: %s; the row is kept without this value (logged once per column)"
        log.warning(message, job, name, why)


def _completed(run: AccountingRun, bad: Collection[str]) -> AccountingRun:
    """Return a run whose unreadable columns are computed from other columns if possible."""
    changes: dict[str, Any] = {}
    if "NNodes" in bad:
        try:
            changes["n_nodes"] = len(expand(run.nodes)) if run.nodes else 0
        except ValueError:
            changes["n_nodes"] = 0
    # In Slurm's accounting: elapsed = end - start - suspended.
    ends = run.start_s, run.end_s
    if "ElapsedRaw" in bad:
        changes["elapsed_s"] = None if "Suspended" in bad else _rest_s(*ends, run.suspended_s)
    if "Suspended" in bad:
        changes["suspended_s"] = None if "ElapsedRaw" in bad else _rest_s(*ends, run.elapsed_s)
    return run._replace(**changes)


def _rest_s(start_s: int | None, end_s: int | None, seconds: int | None) -> int | None:
    """Return the time from start to end minus `seconds`; None if one of them is unknown."""
    if start_s is None or end_s is None or seconds is None:
        return None
    return max(0, end_s - start_s - seconds)


def _ids(shown: str) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the IDs of the array and the heterogeneous job (_IDS) from a job ID as printed by Slurm."""
    if _is_whole(shown):
        return None, None, None, None
    match = _JOB_ID.fullmatch(shown)
    if match is None:
        raise ValueError(f"JobID: {shown!r} is not a job ID")
    task, offset, base = match["task"], match["offset"], int(match["base"])
    return (
        base if task is not None else None,
        int(task) if task is not None and _is_whole(task) else None,
        base if offset is not None else None,
        int(offset) if offset is not None else None,
    )
