"""Find the earliest window in which whole nodes can be reserved.

Times are whole epoch seconds and spans are half open: a span that ends in the second in which another begins
does not overlap it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

# The end of an unlimited span.
FOREVER = 1 << 62


class Candidate(NamedTuple):
    """A node that can be reserved."""

    name: str
    gpus: int
    zone: str | None = None


class BusySpan(NamedTuple):
    """A span in which a node is not available."""

    node: str
    from_s: int
    until_s: int


@dataclass(frozen=True, slots=True)
class CalendarWindow:
    """A span in which nodes can be reserved."""

    start_s: int
    end_s: int
    nodes: tuple[str, ...]


def earliest_window(
    candidates: Sequence[Candidate],
    taken: Iterable[BusySpan],
    n_nodes: int,
    duration_s: int,
    earliest_s: int,
    latest_s: int = FOREVER,
) -> CalendarWindow | None:
    """Return the first window of `duration_s` on `n_nodes` nodes that starts within [earliest_s, latest_s].

    Return None if there is none. Among the free nodes, prefer those of a single zone, namely the zone with
    the fewest spare nodes; then prefer the nodes with the fewest GPUs, in the order of `candidates`. The
    search takes O(n log n) time for n spans.
    """
    spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for one in taken:
        if one.from_s < one.until_s:
            spans[one.node].append((one.from_s, one.until_s))
    by_name = {one.name: one for one in candidates}
    opens: list[tuple[int, str]] = []
    closes: list[tuple[int, str]] = []
    for name in by_name:
        for first_s, last_s in _starts(spans[name], duration_s, earliest_s, latest_s):
            opens.append((first_s, name))
            closes.append((last_s, name))
    closes.sort(reverse=True)
    free: set[str] = set()
    for start_s, opening in groupby(sorted(opens), itemgetter(0)):
        while closes and closes[-1][0] < start_s:
            free.discard(closes.pop()[1])
        free.update(name for _, name in opening)
        if len(free) >= n_nodes:
            chosen = _chosen([one for one in by_name.values() if one.name in free], n_nodes)
            return CalendarWindow(start_s, start_s + duration_s, chosen)
    return None


def _starts(
    spans: Collection[tuple[int, int]], duration_s: int, earliest_s: int, latest_s: int
) -> Iterator[tuple[int, int]]:
    """Yield, for each free interval of a node, the first and last second at which a window can start."""
    free_s = earliest_s
    for from_s, until_s in sorted(spans):
        last_s = min(from_s - duration_s, latest_s)
        if free_s <= last_s:
            yield free_s, last_s
        free_s = max(free_s, until_s)
    if free_s <= latest_s and free_s < FOREVER:
        yield free_s, latest_s


def _chosen(free: Sequence[Candidate], n_nodes: int) -> tuple[str, ...]:
    zones: defaultdict[str, list[Candidate]] = defaultdict(list)
    for one in free:
        if one.zone is not None:
            zones[one.zone].append(one)
    whole = [(len(members), zone) for zone, members in zones.items() if len(members) >= n_nodes]
    if whole:
        free = zones[min(whole)[1]]
    size = {zone: len(members) for zone, members in zones.items()}

    def rank(one: Candidate) -> tuple[int, str, int]:
        # If no zone has enough nodes, use as few zones as possible.
        zone = one.zone or ""
        return (0, "", one.gpus) if whole else (-size.get(zone, 0), zone, one.gpus)

    return tuple(one.name for one in sorted(free, key=rank)[:n_nodes])
