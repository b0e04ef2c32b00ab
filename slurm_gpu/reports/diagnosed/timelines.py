"""Draw the timeline of each metric, with peers as a band, suspects as lines, and level changes as marks."""

from __future__ import annotations

from itertools import pairwise
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.changes import segments
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, quantile
from slurm_gpu.reports.diagnosed.heat import scale
from slurm_gpu.reports.diagnosed.page_model import CaseView, DiagnosisPageModel
from slurm_gpu.reports.diagnosed.style import GROUP_TONES, NAMED_TONES
from slurm_gpu.reports.diagnosed.time_axis import axis_element, time_lines
from slurm_gpu.reports.diagnosed.words import TITLES, shown
from slurm_gpu.reports.page.markup import append, element, items, section
from slurm_gpu.text.units import counted

MOST_LINES = len(NAMED_TONES)
_MOST_CHANGES = 8
_HEIGHT = 76
# The smallest level change that is marked, as a share of the drawing's range.
_LEAST_CHANGE = 0.04


def courses_section(page: DiagnosisPageModel, view: CaseView) -> Element:
    """Return the drawings of all metrics on one time axis."""
    named = np.flatnonzero(view.culprit)[:MOST_LINES]
    grid = element("div", {"class": "courses"})
    for metric, rows in view.values.items():
        append(grid, *_course(page, view, metric, rows, named))
    append(grid, element("span", None), axis_element(view, page.timezone))
    more = int(view.culprit.sum()) - len(named)
    notes = [
        "Triangles at the bottom mark level changes of the median of all GPUs. Triangles at the top mark "
        "level changes of suspected GPUs relative to the median of their group. Pauses are shaded.",
        *([f"Only the heat map above shows {counted(more, 'more suspected GPU')}."] if more > 0 else []),
    ]
    return section(
        "courses",
        "Timelines",
        _legend(page, view, named),
        grid,
        items("notes", notes),
    )


def _legend(page: DiagnosisPageModel, view: CaseView, named: NDArray[np.intp]) -> Element:
    groups = _groups(page, view)
    entries = [(f"group-{place}", f"median of {name}") for place, (name, _) in enumerate(groups)]
    if view.is_of_one:
        entries = [("group-0", view.workers[0].name)]
    else:
        entries.append(("band", "80 % of the GPUs"))
    entries += [(f"line-{place}", view.workers[row].name) for place, row in enumerate(named)]
    spans = (
        element("span", None, element("i", {"class": f"swatch {name}"}), element("bdi", None, text))
        for name, text in entries
    )
    return element("p", {"class": "legend"}, *spans)


def _course(
    page: DiagnosisPageModel, view: CaseView, metric: Metric, rows: Matrix, named: NDArray[np.intp]
) -> tuple[Element, Element]:
    least, most = scale(view, metric)
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
            "aria-label": _spoken(view, metric, middle),
        },
    )
    for begins, ends in page.case.phases.pauses():
        a, b = (view.share(page.case.series.start_s + at * page.case.series.width_s) for at in (begins, ends))
        place = {"x": f"{100 * a:.2f}%", "width": f"{100 * (b - a):.2f}%", "y": "0", "height": str(_HEIGHT)}
        append(svg, element("rect", {"class": "pause", **place}))
    lines = element(
        "svg",
        {
            "viewBox": f"0 0 {view.n_columns} 100",
            "preserveAspectRatio": "none",
            "width": "100%",
            "height": str(_HEIGHT),
        },
    )

    def y_of(values: Matrix) -> Matrix:
        return np.clip(100.0 * (high - values) / (high - low), 0.0, 100.0)

    for group, (_, members) in enumerate(_groups(page, view)):
        part = rows[members].T
        band = _area(y_of(quantile(part, 0.9)), y_of(quantile(part, 0.1)))
        append(lines, element("path", {"class": f"band on-group-{group}", "d": band}))
        append(lines, element("path", {"class": f"group-{group}", "d": _path(y_of(median(part)))}))
    for number, row in enumerate(named):
        append(lines, element("path", {"class": f"line-{number}", "d": _path(y_of(rows[row]))}))
    append(svg, lines, *time_lines(page, view, _HEIGHT))
    append(svg, *_marks(view, _changes(middle, reach), "all", _HEIGHT))
    peers = {int(group): median(rows[view.of == group].T) for group in np.unique(view.of[named])}
    for number, row in enumerate(named):
        append(svg, *_marks(view, _changes(rows[row] - peers[int(view.of[row])], reach), f"line-{number}", 0))
    side = element(
        "div",
        {"class": "side"},
        element("span", None, TITLES[metric]),
        element("small", None, f"{shown(metric, least)} to {shown(metric, most)}"),
    )
    return side, svg


def _changes(row: Matrix, reach: float) -> list[int]:
    """Return the columns with the largest changes of level."""
    parts = segments(row)
    found = [
        (abs(after.level - before.level), after.start)
        for before, after in pairwise(parts)
        if abs(after.level - before.level) >= _LEAST_CHANGE * reach
    ]
    return sorted(at for _, at in sorted(found, reverse=True)[:_MOST_CHANGES])


def _marks(view: CaseView, columns: list[int], tone: str, y: int) -> list[Element]:
    shape = "M-4 0L0-6L4 0z" if y else "M-4 0L0 6L4 0z"
    return [
        element(
            "svg",
            {"class": "mark", "x": f"{100 * column / view.n_columns:.2f}%", "y": str(y)},
            element("path", {"class": f"on-{tone}", "d": shape}),
        )
        for column in columns
    ]


def _path(ys: Matrix) -> str:
    """Return a path through the centres of the columns, interrupted at missing values."""
    parts, pen_up = [], True
    for x, y in enumerate(ys.tolist()):
        if y != y:
            pen_up = True
        else:
            parts.append(f"{'M' if pen_up else 'L'}{x}.5 {y:.0f}" if pen_up else f"L{x}.5 {y:.0f}")
            pen_up = False
    return "".join(parts)


def _area(upper: Matrix, lower: Matrix) -> str:
    """Return the area between two lines, interrupted at missing values."""
    both = np.isfinite(upper) & np.isfinite(lower)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], both, [False]]).astype(int)))
    pieces = []
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        there = [f"{x}.5 {upper[x]:.0f}" for x in range(first, stop)]
        back = [f"{x}.5 {lower[x]:.0f}" for x in reversed(range(first, stop))]
        pieces.append(f"M{'L'.join([*there, *back])}z")
    return "".join(pieces)


def _spoken(view: CaseView, metric: Metric, middle: Matrix) -> str:
    known = middle[np.isfinite(middle)]
    level = shown(metric, float(np.median(known))) if known.size else "no data"
    return f"{TITLES[metric]}: median of {counted(view.n_rows, 'GPU')}, mostly {level}"


def _groups(page: DiagnosisPageModel, view: CaseView) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return the groups to draw with a median and a band; one group of all GPUs if there are many groups."""
    there = [int(group) for group in np.unique(view.of)]
    if len(there) > len(GROUP_TONES) or len(there) == 1:
        return [("all GPUs", np.ones(view.n_rows, dtype=bool))]
    return [(page.case.groups.names[group], view.of == group) for group in there]
