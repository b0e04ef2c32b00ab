"""Judge whether a daemon leaks, from its memory, open files and disk usage in bench/soak.py.

A new daemon grows: it loads modules on first use, and fills caches for an hour. This growth ends, but a leak
does not. Therefore only the second half of the longest life is judged. Short-lived memory is not a leak, so
the minimum of each five minutes is used. The slope is the one-third quantile of the slopes between all pairs
of minima. This slope is 0 for a daemon that grows once, and the rate of the leak for a daemon that leaks.
(The median, used by Theil and Sen, changes with a single step in the middle.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

LEAK_MIB_PER_H, LEAK_FILES_PER_H = 6.0, 3.0
YOUNG_S = 300.0
"""The first seconds of a daemon's life are ignored, because every daemon grows at first."""
LEAST_OF_S = 300.0
LEAST_POINTS = 5
"""Minimum number of five-minute intervals for a judgement."""
NODES_DISK = "disk of the nodes"

Points = Sequence[tuple[float, float]]
"""(seconds, value)."""


@dataclass(frozen=True)
class UsageSample:
    """The usage of one daemon and its children at one time of one life."""

    at_s: float
    rss_mib: float
    files: int


def leaks(
    lives: Mapping[tuple[str, int], Sequence[UsageSample]], disk: Points = ()
) -> dict[str, dict[str, float | None]]:
    """Return usage and growth per hour by kind of daemon; `lives` are by name and process.

    `mib_per_h` and `files_per_h` are judged, None after too short a time; `mib_per_h_of_all` is the slope of
    all lives from their sixth minute on. `disk` is in MiB, of all nodes together.
    """
    kinds: dict[str, list[Sequence[UsageSample]]] = defaultdict(list)
    for (name, _), samples in lives.items():
        grown = [sample for sample in samples if sample.at_s >= samples[0].at_s + YOUNG_S]
        if len(grown) > 1:
            kinds["slurm-gpud" if name.startswith("slurm-gpud-") else name].append(grown)
    found: dict[str, dict[str, float | None]] = {}
    for kind, of_kind in sorted(kinds.items()):
        longest = max(of_kind, key=_length_s)
        found[kind] = {
            "watched_h": round(sum(map(_length_s, of_kind)) / 3600, 2),
            "longest_min": round(_length_s(longest) / 60, 1),
            "most_rss_mib": round(max(sample.rss_mib for life in of_kind for sample in life), 1),
            "mib_per_h_of_all": round(slope([[(at.at_s, at.rss_mib) for at in life] for life in of_kind]), 2),
            "mib_per_h": _rounded(settled_per_h([(sample.at_s, sample.rss_mib) for sample in longest])),
            "files_per_h": _rounded(settled_per_h([(sample.at_s, sample.files) for sample in longest])),
        }
    if disk:
        found[NODES_DISK] = {
            "most_mib": round(max(mib for _, mib in disk), 2),
            "at_last_mib": round(disk[-1][1], 2),
            "mib_per_h": _rounded(settled_per_h(disk)),
        }
    return found


def leaking(found: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Return the leaking daemons in the result of `leaks`; lives that are too short are skipped."""
    limits = {"mib_per_h": LEAK_MIB_PER_H, "files_per_h": LEAK_FILES_PER_H}
    return [
        kind
        for kind, values in found.items()
        if any((value := values.get(name)) is not None and value > most for name, most in limits.items())
    ]


def settled_per_h(points: Points) -> float | None:
    """Return the growth per hour of the minima of five minutes in the second half; None if too short."""
    if not points:
        return None
    median_s = (points[0][0] + points[-1][0]) / 2
    least: dict[int, tuple[float, float]] = {}
    for at_s, value in points:
        part = int((at_s - median_s) // LEAST_OF_S)
        if at_s >= median_s and (part not in least or value < least[part][1]):
            least[part] = at_s, value
    if len(least) < LEAST_POINTS:
        return None
    # Minima are placed at equal distances; otherwise an early minimum would suggest faster growth.
    of_parts = [(part * LEAST_OF_S, value) for part, (_, value) in sorted(least.items())]
    slopes = sorted((y2 - y1) / (t2 - t1) for (t1, y1), (t2, y2) in combinations(of_parts, 2))
    return 3600 * slopes[len(slopes) // 3]


def slope(lives: Iterable[Points]) -> float:
    """Return the slope per hour by least squares, with a separate offset for each life."""
    above = below = 0.0
    for life in lives:
        mean_t, mean_y = (sum(values) / len(life) for values in zip(*life, strict=True))
        above += sum((t - mean_t) * (y - mean_y) for t, y in life)
        below += sum((t - mean_t) ** 2 for t, _ in life)
    return 3600 * above / below if below else 0.0


def _length_s(life: Sequence[UsageSample]) -> float:
    return life[-1].at_s - life[0].at_s


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
