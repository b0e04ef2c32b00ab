"""Allocated GPU time by plain arithmetic with fractions, as the reference for reports.

This module does not use slurm_gpu: a run is a dictionary with Slurm's own names, and the history of a node
is a list of (from_s, server type, zone).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

Course = Sequence[tuple[int, str | None, str | None]]
# The server type and the zone in slurm-gpu.yaml, by node.
Written = tuple[Mapping[str, str], Mapping[str, str]]


def allocated_mgpu_s(run: Mapping[str, Any], since_s: int, until_s: int, now_s: int) -> int:
    """Return the GPU/1000 × seconds allocated to a run within [since, until)."""
    if run["start_s"] is None or run["mgpu"] is None:
        return 0
    begin = max(run["start_s"], run["submit_s"], since_s)
    end = min(now_s if run["end_s"] is None else run["end_s"], until_s)
    return int(run["mgpu"] * max(0, end - begin))


def place_of(node: str, at_s: int, courses: Mapping[str, Course], written: Written) -> tuple[str, str]:
    """Return (server type, zone): as recorded then, as configured, as first recorded, or other."""
    course = sorted(courses.get(node, ()))
    seen = [entry for entry in course if entry[0] <= at_s]
    found = []
    for which in (1, 2):
        candidates = [seen[-1][which]] if seen else []
        candidates.append(written[which - 1].get(node))
        if not seen and course:
            candidates.append(course[0][which])
        found.append(next((name for name in candidates if name is not None), "other"))
    return found[0], found[1]


def by_place(
    runs: Sequence[Mapping[str, Any]],
    courses: Mapping[str, Course],
    written: Written,
    since_s: int,
    until_s: int,
    now_s: int,
) -> dict[tuple[str, str], Fraction]:
    """Return the GPU time of each (server type, zone): by records if they have all nodes, else evenly."""
    parts: dict[tuple[tuple[str, str], int], int] = defaultdict(int)
    for run in runs:
        allocated = allocated_mgpu_s(run, since_s, until_s, now_s)
        if not allocated:
            continue
        weights = dict.fromkeys(run["nodes"], 1)
        recorded = run.get("recorded") or {}
        if recorded.keys() == weights.keys() and None not in recorded.values() and sum(recorded.values()):
            weights = recorded
        at_s, whole = max(run["start_s"], run["submit_s"]), sum(weights.values())
        for node, weight in weights.items():
            parts[place_of(node, at_s, courses, written), whole] += allocated * weight
    total: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for (place, whole), amount in parts.items():
        total[place] += Fraction(amount, whole)
    return dict(total)


def by_key(
    runs: Sequence[Mapping[str, Any]], key: str, since_s: int, until_s: int, now_s: int
) -> dict[str, int]:
    """Return the GPU time by user, account or another attribute of runs."""
    total: dict[str, int] = defaultdict(int)
    for run in runs:
        total[run[key]] += allocated_mgpu_s(run, since_s, until_s, now_s)
    return dict(total)
