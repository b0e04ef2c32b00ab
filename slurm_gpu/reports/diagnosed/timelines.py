"""The course of each metric: peers as a band, whoever is accused as a line, what changed when."""

from __future__ import annotations

from itertools import pairwise
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.changes import segments
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, quantile
from slurm_gpu.reports.diagnosed.heat import scale
from slurm_gpu.reports.diagnosed.page_model import DiagnosisPageModel, Sight
from slurm_gpu.reports.diagnosed.style import GROUP_TONES, NAMED_TONES
from slurm_gpu.reports.diagnosed.time_axis import axis_element, time_lines
from slurm_gpu.reports.diagnosed.words import TITLES, shown
from slurm_gpu.reports.page.markup import append, element, items, section

MOST_LINES = len(NAMED_TONES)
_MOST_CHANGES = 8
_HEIGHT = 76
# Of what the drawing reaches over: a change that is no larger is not marked.
_LEAST_CHANGE = 0.04


def courses_section(look: DiagnosisPageModel, sight: Sight) -> Element:
    """One drawing under the other, on one axis of time."""
    named = np.flatnonzero(sight.culprit)[:MOST_LINES]
    grid = element("div", {"class": "courses"})
    for metric, rows in sight.values.items():
        append(grid, *_course(look, sight, metric, rows, named))
    append(grid, element("span", None), axis_element(sight, look.timezone))
    more = int(sight.culprit.sum()) - len(named)
    notes = [
        "Triangles below mark when the middle of all GPUs changed its level, those above when a GPU that is "
        "drawn by itself changed its own against that middle. Shaded: the job paused.",
        *([f"{more} more GPUs that are accused are in the map above alone."] if more > 0 else []),
    ]
    return section(
        "courses",
        "The course of it",
        _legend(look, sight, named),
        grid,
        items("notes", notes),
    )


def _legend(look: DiagnosisPageModel, sight: Sight, named: NDArray[np.intp]) -> Element:
    groups = _groups(look, sight)
    entries = [(f"group-{place}", f"middle of {name}") for place, (name, _) in enumerate(groups)]
    if sight.is_of_one:
        entries = [("group-0", sight.workers[0].name)]
    else:
        entries.append(("band", "8 of 10 GPUs lie in it"))
    entries += [(f"line-{place}", sight.workers[row].name) for place, row in enumerate(named)]
    spans = (
        element("span", None, element("i", {"class": f"swatch {name}"}), element("bdi", None, text))
        for name, text in entries
    )
    return element("p", {"class": "legend"}, *spans)


def _course(
    look: DiagnosisPageModel, sight: Sight, metric: Metric, rows: Matrix, named: NDArray[np.intp]
) -> tuple[Element, Element]:
    least, most = scale(sight, metric)
    reach = most - least
    low, high = least - 0.06 * reach, most + 0.06 * reach
    middle = median(rows.T)
    svg = element(
        "svg",
        {
            "class": "course",
            "width": "100%",
            "height": str(_HEIGHT),
            "role": "img",
            "aria-label": _spoken(sight, metric, middle),
        },
    )
    for begins, ends in look.case.phases.pauses():
        a, b = (
            sight.share(look.case.series.start_s + at * look.case.series.width_s) for at in (begins, ends)
        )
        place = {"x": f"{100 * a:.2f}%", "width": f"{100 * (b - a):.2f}%", "y": "0", "height": str(_HEIGHT)}
        append(svg, element("rect", {"class": "pause", **place}))
    lines = element(
        "svg",
        {
            "viewBox": f"0 0 {sight.n_columns} 100",
            "preserveAspectRatio": "none",
            "width": "100%",
            "height": str(_HEIGHT),
        },
    )

    def y_of(values: Matrix) -> Matrix:
        return np.clip(100.0 * (high - values) / (high - low), 0.0, 100.0)

    for group, (_, members) in enumerate(_groups(look, sight)):
        part = rows[members].T
        band = _area(y_of(quantile(part, 0.9)), y_of(quantile(part, 0.1)))
        append(lines, element("path", {"class": f"band on-group-{group}", "d": band}))
        append(lines, element("path", {"class": f"group-{group}", "d": _path(y_of(median(part)))}))
    for number, row in enumerate(named):
        append(lines, element("path", {"class": f"line-{number}", "d": _path(y_of(rows[row]))}))
    append(svg, lines, *time_lines(look, sight, _HEIGHT))
    append(svg, *_marks(sight, _changes(middle, reach), "all", _HEIGHT))
    peers = {int(group): median(rows[sight.of == group].T) for group in np.unique(sight.of[named])}
    for number, row in enumerate(named):
        append(
            svg, *_marks(sight, _changes(rows[row] - peers[int(sight.of[row])], reach), f"line-{number}", 0)
        )
    side = element(
        "div",
        {"class": "side"},
        element("span", None, TITLES[metric]),
        element("small", None, f"{shown(metric, least)} to {shown(metric, most)}"),
    )
    return side, svg


def _changes(row: Matrix, reach: float) -> list[int]:
    """Columns at which the level changes, those that change it most."""
    parts = segments(row)
    found = [
        (abs(after.level - before.level), after.start)
        for before, after in pairwise(parts)
        if abs(after.level - before.level) >= _LEAST_CHANGE * reach
    ]
    return sorted(at for _, at in sorted(found, reverse=True)[:_MOST_CHANGES])


def _marks(sight: Sight, columns: list[int], tone: str, y: int) -> list[Element]:
    shape = "M-4 0L0-6L4 0z" if y else "M-4 0L0 6L4 0z"
    return [
        element(
            "svg",
            {"class": "mark", "x": f"{100 * column / sight.n_columns:.2f}%", "y": str(y)},
            element("path", {"class": f"on-{tone}", "d": shape}),
        )
        for column in columns
    ]


def _path(ys: Matrix) -> str:
    """Steps from the middle of each column to the next; a gap is none."""
    parts, pen_up = [], True
    for x, y in enumerate(ys.tolist()):
        if y != y:
            pen_up = True
        else:
            parts.append(f"{'M' if pen_up else 'L'}{x}.5 {y:.0f}" if pen_up else f"L{x}.5 {y:.0f}")
            pen_up = False
    return "".join(parts)


def _area(upper: Matrix, lower: Matrix) -> str:
    """Between two lines, a piece for each run without gaps."""
    both = np.isfinite(upper) & np.isfinite(lower)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], both, [False]]).astype(int)))
    pieces = []
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        there = [f"{x}.5 {upper[x]:.0f}" for x in range(first, stop)]
        back = [f"{x}.5 {lower[x]:.0f}" for x in reversed(range(first, stop))]
        pieces.append(f"M{'L'.join([*there, *back])}z")
    return "".join(pieces)


def _spoken(sight: Sight, metric: Metric, middle: Matrix) -> str:
    known = middle[np.isfinite(middle)]
    level = shown(metric, float(np.median(known))) if known.size else "nothing told"
    return f"{TITLES[metric]}: the middle of {sight.n_rows} GPUs, mostly {level}"


def _groups(look: DiagnosisPageModel, sight: Sight) -> list[tuple[str, NDArray[np.bool_]]]:
    """Whose middle and band are drawn: each group's, or where they are many, all together."""
    there = [int(group) for group in np.unique(sight.of)]
    if len(there) > len(GROUP_TONES) or len(there) == 1:
        return [("all GPUs", np.ones(sight.n_rows, dtype=bool))]
    return [(look.case.groups.names[group], sight.of == group) for group in there]
