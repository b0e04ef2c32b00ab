"""Parse the parameters of /v1/runs: filters, sort order and page."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    RowMapping,
    and_,
    case,
    func,
    literal,
    null,
    or_,
    true,
)

from slurm_gpu.database.http.request import whole_parameter
from slurm_gpu.database.storage.schema import run
from slurm_gpu.errors import UsageError
from slurm_gpu.http.identity import Caller

MAX_LIMIT = 1000
DEFAULT_LIMIT = 100
_INT64 = 2**63 - 1
_MICRO = 1_000_000
_FILTERS = (
    *("user", "account", "state", "qos", "partition", "app", "gpu_type", "server_type", "zone", "min_gpus"),
    *("since", "until", "ended", "sort", "order", "limit", "cursor"),
)
_COMMA_JOINED = {"partition": run.c.partition, "gpu_type": run.c.gpu_type}
_COMMA_JOINED |= {"server_type": run.c.server_type, "zone": run.c.zone}


# The same number as Run.n_gpus, in thousandths of a GPU.
_mgpu = case((run.c.start_s.is_(None), run.c.requested_mgpu), else_=run.c.granted_mgpu)


def _micro(column: Column[float]) -> Callable[[float], ColumnElement[Any]]:
    """Sort by millionths, since databases and Python may differ in the last digit of a fraction."""
    return lambda now_s: func.round(column * _MICRO)


def _elapsed_s(now_s: float) -> ColumnElement[Any]:
    going_on = and_(run.c.end_s.is_(None), run.c.state == "RUNNING")
    so_far_s = int(now_s) - run.c.start_s - run.c.suspended_s
    return case((run.c.start_s.is_(None), null()), (going_on, so_far_s), else_=run.c.elapsed_s)


_ORDERS: Mapping[str, Callable[[float], ColumnElement[Any]]] = {
    "start": lambda now_s: run.c.start_s,
    "end": lambda now_s: run.c.end_s,
    "nNODE": lambda now_s: run.c.n_nodes,
    "nGPU": lambda now_s: _mgpu,
    "WAIT_h": lambda now_s: run.c.start_s - run.c.eligible_s,
    "RUN_h": _elapsed_s,
    "uGPUcore": _micro(run.c.ugpucore),
    "uGPUmem": _micro(run.c.ugpumem),
    "energy_j": _micro(run.c.energy_j),
}
_PRIVATE = frozenset({"uGPUcore", "uGPUmem", "energy_j"})
SUBMIT = "submit"
# Sort keys of runs. `submit` is the default, and the only key that orders the tasks of an array.
SORTS = (SUBMIT, *_ORDERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Selects the runs that satisfy all filters; several names in one filter are alternatives.

    A run must have been submitted before `until_s`, and must not have ended before `since_s`. `min_gpus` is
    compared with the granted GPUs, or with the requested GPUs of a pending job.
    """

    users: Sequence[str] = ()
    accounts: Sequence[str] = ()
    states: Sequence[str] = ()
    qos: str | None = None
    app: str | None = None
    having: Mapping[str, str] | None = None
    """Filters of columns that contain comma-separated names: partition, gpu_type, server_type and zone."""
    min_gpus: float | None = None
    since_s: int | None = None
    until_s: int | None = None
    ended: bool = False
    """Whether only runs that have ended are selected."""
    sort: str = SUBMIT
    ascending: bool = False
    limit: int = DEFAULT_LIMIT
    after: PageCursor | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> RunFilter:
        """Parse the parameters of a request; raise UsageError for an unknown name or an invalid value."""
        for name in query:
            if name not in _FILTERS:
                raise UsageError(f"{name!r} is not a filter of runs; allowed: {', '.join(_FILTERS)}")
        limit = _whole("limit", query, 1, MAX_LIMIT)
        sort = _one_of("sort", query, SORTS)
        return cls(
            users=_names(query["user"]) or ("",) if "user" in query else (),
            accounts=_names(query.get("account", "")),
            states=tuple(state.upper() for state in _names(query.get("state", ""))),
            qos=query.get("qos"),
            app=query.get("app"),
            having={name: query[name] for name in _COMMA_JOINED if name in query},
            min_gpus=_number("min_gpus", query),
            since_s=_whole("since", query, 0, _INT64),
            until_s=_whole("until", query, 0, _INT64),
            ended=_one_of("ended", query, ("false", "true")) == "true",
            sort=sort,
            ascending=_one_of("order", query, ("desc", "asc")) == "asc",
            limit=DEFAULT_LIMIT if limit is None else limit,
            after=PageCursor.read(query["cursor"]) if "cursor" in query else None,
        )

    @property
    def has_filter_without_index(self) -> bool:
        """Return whether runs are selected by a column or expression for which `run` has no index."""
        return not (self.qos is None and self.app is None and self.min_gpus is None and not self.having)


@dataclass(frozen=True, slots=True)
class PageCursor:
    """The end of a page: the sort value and ID of its last run, and the time of the request for page 1."""

    value: int | None
    run_id: int
    now_s: int

    @classmethod
    def read(cls, text: str) -> PageCursor:
        """Decode the parameter `cursor`; raise UsageError if it is invalid."""
        try:
            padded = text.encode("ascii") + b"=" * (-len(text) % 4)
            value, run_id, now_s = json.loads(base64.b64decode(padded, b"-_", validate=True))
            numbers = [run_id, now_s] if value is None else [value, run_id, now_s]
            # With a negative `now_s`, differences of times could exceed MariaDB's range.
            if all(type(number) is int and -_INT64 <= number <= _INT64 for number in numbers) and now_s >= 0:
                return cls(value, run_id, now_s)
        except (ValueError, TypeError, RecursionError, binascii.Error):
            pass
        raise UsageError(f"cursor: {text[:100]!r} is not the cursor of an earlier answer")

    def cursor(self) -> str:
        """Return the encoded cursor with which a client requests the next page."""
        known = json.dumps((self.value, self.run_id, self.now_s), separators=(",", ":"))
        return base64.urlsafe_b64encode(known.encode()).decode().rstrip("=")


class RowQuery(NamedTuple):
    """The conditions and order of a query for a part of the rows."""

    where: Sequence[ColumnElement[bool]]
    order: Sequence[ColumnElement[Any]]


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The order in which a caller sees rows at a given time."""

    key: ColumnElement[Any]
    ascending: bool
    now_s: int
    is_recent: bool = False
    """Whether only runs that ended recently or not at all are selected."""
    is_rare: bool = False
    """Whether a filter without an index may match few of these runs."""

    @classmethod
    def of(cls, wanted: RunFilter, caller: Caller, now_s: float) -> SortOrder:
        """Return the requested order; values that the caller may not see are treated as missing."""
        at_s = int(now_s) if wanted.after is None else wanted.after.now_s
        key = run.c.submit_s if wanted.sort == SUBMIT else _ORDERS[wanted.sort](at_s)
        if wanted.sort in _PRIVATE and not caller.sees_all:
            key = case((seen_by(caller), key), else_=null())
        is_recent = wanted.since_s is not None
        return cls(
            key, wanted.ascending, at_s, is_recent, is_rare=is_recent and wanted.has_filter_without_index
        )

    def steps(self, after: PageCursor | None) -> Iterator[RowQuery]:
        """Yield the queries to run in order: one for rows with a sort value, and one for rows without.

        Each query can use an index on the sort column, and continues from `after` without reading earlier
        rows.
        """
        ascending, key = self.ascending, self.key
        in_turn = run.c.run_id.asc() if ascending else run.c.run_id.desc()
        after_row: list[ColumnElement[bool]] = []
        if after is not None:
            after_row = [run.c.run_id > after.run_id if ascending else run.c.run_id < after.run_id]
        if after is None or after.value is not None:
            where: list[ColumnElement[bool]] = [] if key is run.c.submit_s else [key.is_not(None)]
            if after is not None:
                within, past = (
                    (key >= after.value, key > after.value)
                    if ascending
                    else (key <= after.value, key < after.value)
                )
                where += [within, or_(past, *after_row)]
            # In the order of an index, MariaDB would read the whole table if the matching runs do not fill a
            # page (1.8 s for a million runs). No index has the order of a sum.
            by = key + 0 if self.is_rare else key
            yield RowQuery(where, (by.asc() if ascending else by.desc(), in_turn))
            after_row = []
        if key is not run.c.submit_s:
            # The same applies to the few recent runs without a value and the order of run_id (0.4 s).
            recent = run.c.run_id + 0
            recent_in_turn = recent.asc() if ascending else recent.desc()
            yield RowQuery([key.is_(None), *after_row], (recent_in_turn if self.is_recent else in_turn,))

    def place(self, row: RowMapping) -> PageCursor:
        """Return the cursor for the position after a row; the row contains its sort value as `sort_key`."""
        value = row["sort_key"]
        return PageCursor(None if value is None else round(value), row["run_id"], self.now_s)


def conditions(wanted: RunFilter, caller: Caller) -> list[ColumnElement[bool]]:
    """Return the conditions of all filters except `until_s` and `after`; hidden values never match."""
    found: list[ColumnElement[bool]] = []
    if wanted.users:
        found.append(run.c.user.in_(wanted.users))
    if wanted.accounts:
        found.append(run.c.account.in_(wanted.accounts))
    if wanted.states:
        found.append(run.c.state.in_(wanted.states))
    if wanted.qos is not None:
        found.append(run.c.qos == wanted.qos)
    if wanted.app is not None:
        found.append(and_(run.c.app == wanted.app, seen_by(caller)))
    for name, value in (wanted.having or {}).items():
        among = literal(",") + _COMMA_JOINED[name] + literal(",")
        found.append(or_(*(among.contains(f",{one},", autoescape=True) for one in _names(value) or [""])))
    if wanted.min_gpus is not None:
        found.append(_mgpu >= round(wanted.min_gpus * 1000))
    if wanted.ended:
        found.append(run.c.end_s.is_not(None))
    if wanted.since_s is not None:
        found.append(or_(run.c.end_s.is_(None), run.c.end_s >= wanted.since_s))
    return found


def seen_by(caller: Caller) -> ColumnElement[bool]:
    """Return a condition that selects the runs that the caller may see in full, as in Caller.may_see."""
    if caller.sees_all:
        return true()
    return run.c.uid == caller.uid


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _one_of(name: str, query: Mapping[str, str], allowed: Sequence[str]) -> str:
    text = query.get(name, allowed[0])
    if text not in allowed:
        raise UsageError(f"{name}: {text[:100]!r} must be one of {', '.join(allowed)}")
    return text


def _whole(name: str, query: Mapping[str, str], low: int, high: int) -> int | None:
    return whole_parameter(name, query[name], low, high) if name in query else None


def _number(name: str, query: Mapping[str, str]) -> float | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _MICRO:
        raise UsageError(f"{name}: {text[:100]!r} must be a number from 0 to {_MICRO}, such as 0.25 or 8")
    return value
