"""Rows of `sacct`: which columns are asked for, and how each becomes a field of AccountingRun.

The delimiter is a random word per call, so that no job name, comment or newline can forge a column.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.slurm.tres import parse_tres
from slurm_gpu.units import parse_slurm_time

log = logging.getLogger(__name__)

_JOB_ID = re.compile(r"(?P<base>[0-9]+)(?:_(?P<task>[0-9]+|\[.*\]))?(?:\+(?P<offset>[0-9]+))?")
_DIFFERENT = 4096
"""So many of the texts that rows have in common, such as TRES, are read once and remembered."""
_TOLD_AT_MOST = 20
"""Of what one reading could not read; how much more there was is told in one line."""
_SHOWN_CHARACTERS = 2000
"""Of a row that cannot be read: all of it, unless it has a long comment."""


def _is_whole(text: str) -> bool:
    return text.isdigit() and text.isascii()


def _number(text: str) -> int:
    if not _is_whole(text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _epoch(text: str) -> int | None:
    return int(text) if _is_whole(text) and text != "0" else None


def _whole(text: str) -> int | None:
    return int(text) if _is_whole(text) else None


@functools.lru_cache(_DIFFERENT)
def _seconds(text: str) -> int:
    """Suspended is printed as [D-]HH:MM:SS."""
    try:
        return int(parse_slurm_time(text)) if text else 0
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _limit(text: str) -> int | None:
    """TimelimitRaw is whole minutes, or a word such as UNLIMITED."""
    return int(text) * 60 if _is_whole(text) else None


@functools.lru_cache(_DIFFERENT)
def _state(text: str) -> str:
    """The word alone, of "CANCELLED by 1001"."""
    return text.partition(" ")[0]


def _nodes(text: str) -> str:
    return "" if text == "None assigned" else text


@functools.lru_cache(_DIFFERENT)
def _tres(text: str) -> Mapping[str, float]:
    """The same mapping for the same text: nobody may change it."""
    return parse_tres(text)


_COLUMNS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "Cluster": ("cluster", str),
    "JobIDRaw": ("job_id", _number),
    "JobName": ("name", str),
    "User": ("user", str),
    "UID": ("uid", _whole),
    "Account": ("account", str),
    "QOS": ("qos", str),
    "Partition": ("partition", str),
    "State": ("state", _state),
    "ExitCode": ("exit_code", str),
    "Submit": ("submit_s", _number),
    "Eligible": ("eligible_s", _epoch),
    "Start": ("start_s", _epoch),
    "End": ("end_s", _epoch),
    "ElapsedRaw": ("elapsed_s", _number),
    "Suspended": ("suspended_s", _seconds),
    "TimelimitRaw": ("time_limit_s", _limit),
    "NNodes": ("n_nodes", _number),
    "NodeList": ("nodes", _nodes),
    "ReqTRES": ("tres_requested", _tres),
    "AllocTRES": ("tres_allocated", _tres),
    "AdminComment": ("admin_comment", str),
}
_OPTIONAL: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "Restarts": ("restarts", _whole),
    "SLUID": ("sluid", lambda text: text or None),
}


def columns(available: str) -> list[str]:
    """Columns to ask for, given what `sacct --helpformat` prints: newer versions have more."""
    known = set(available.split())
    return ["JobID", *_COLUMNS, *(name for name in _OPTIONAL if name in known)]


def parse_rows(pieces: Iterable[str], names: Sequence[str], mark: str) -> Iterator[AccountingRun]:
    """Runs in what `sacct --parsable --delimiter=<mark>` prints: every column ends with the mark.

    The text comes in pieces of any length. What is no row, or cannot be read, is logged with its text and
    left out; SlurmError where there is no row at all in what was printed.
    """
    read = _reader(names)
    n_rows, n_unreadable, complaint = 0, 0, ""
    for item in _split(pieces, len(names), mark):
        if isinstance(item, str):
            complaint, text = f"sacct printed what is no row of {len(names)} columns", item
        else:
            n_rows += 1
            try:
                found = read(item)
            except ValueError as error:
                complaint, text = f"sacct: job {item[0]}, {error}", "|".join(item)
            else:
                yield found
                continue
        n_unreadable += 1
        if n_unreadable <= _TOLD_AT_MOST:
            _tell_once(complaint, text[:_SHOWN_CHARACTERS])
    if n_unreadable > _TOLD_AT_MOST:
        _tell_once(f"sacct: more rows cannot be read, {n_unreadable} in all; the last", complaint)
    if n_unreadable and not n_rows:
        raise SlurmError(complaint)


@functools.lru_cache(maxsize=1024)
def _tell_once(complaint: str, text: str) -> None:
    """Log a row that cannot be read: it must not keep out the others, nor fill the log at each reading."""
    log.warning("%s; left out: %r", complaint, text)


def _split(pieces: Iterable[str], width: int, mark: str) -> Iterator[list[str] | str]:
    """Rows as their `width` words, and as one text what is between rows and none.

    A row begins on a line of its own, but names and comments hold newlines too. So words are counted, and a
    beginning is looked for only where the next row does not stand where it should.
    """
    words, rest = list[str](), "\n"
    for piece in itertools.chain(pieces, [None]):
        if piece is None:
            words.append(rest)
        else:
            *more, rest = (rest + piece).split(mark)
            words += more
        start = 0
        while len(words) - start > width:
            end = start + width
            if words[start][:1] == "\n" == words[end][:1]:
                before, _, words[start] = words[start].rpartition("\n")  # no id of a job has two lines
                if before.strip():
                    yield before[1:]
                yield words[start:end]
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
                    break  # there is more to come to look in
            start = end
        del words[:start]
    if left := mark.join(words).strip():
        yield left


def _next_row(words: Sequence[str], start: int, width: int) -> int | None:
    """Where, from `start` on, the first row begins that is followed by another or by the end."""
    for index in range(start, len(words) - width):
        _, newline, last = words[index].rpartition("\n")
        if newline and words[index + width][:1] == "\n" and _JOB_ID.fullmatch(last):
            return index
    return None


def _reader(names: Sequence[str]) -> Callable[[Sequence[str]], AccountingRun]:
    """What makes a run of a row's words; it raises ValueError, which names the column."""
    first, *others = names
    assert first == "JobID"
    fields = [_COLUMNS.get(name) or _OPTIONAL[name] for name in others]
    present = {name for name, _ in fields}
    lacking = {name: None for name, _ in _OPTIONAL.values() if name not in present}

    def read(words: Sequence[str]) -> AccountingRun:
        try:
            values: dict[str, Any] = {
                name: of(word) for (name, of), word in zip(fields, words[1:], strict=True)
            }
        except ValueError:
            for column, (_, of), word in zip(others, fields, words[1:], strict=True):
                try:
                    of(word)
                except ValueError as error:
                    raise ValueError(f"{column}: {error}") from None
            raise
        values |= lacking
        values |= _ids(words[0])
        return AccountingRun(**values)

    return read


def _ids(shown: str) -> dict[str, int | None]:
    """What the id that Slurm shows tells of arrays and heterogeneous jobs."""
    match = _JOB_ID.fullmatch(shown)
    if match is None:
        raise ValueError(f"JobID: {shown!r} is not a job id")
    task, offset, base = match["task"], match["offset"], int(match["base"])
    return {
        "array_job_id": base if task is not None else None,
        "array_task": int(task) if task is not None and _is_whole(task) else None,
        "het_job_id": base if offset is not None else None,
        "het_offset": int(offset) if offset is not None else None,
    }
