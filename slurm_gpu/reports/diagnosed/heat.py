"""GPU × time: a heat map for each metric, as measured and against peers, with whoever is accused framed."""

from __future__ import annotations

from itertools import groupby, pairwise
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, quantile
from slurm_gpu.reports.diagnosed.page_model import DiagnosisPageModel, Sight
from slurm_gpu.reports.diagnosed.raster import N_LEVELS, Colour, diverging, picture, sequential
from slurm_gpu.reports.diagnosed.style import VIEWS
from slurm_gpu.reports.diagnosed.time_axis import axis_element, time_lines
from slurm_gpu.reports.diagnosed.words import BYTES, TITLES, group_tone, metric_of, shown
from slurm_gpu.reports.page.markup import append, element, items, section

# Relative difference to peers that has the full colour.
_PEERS_REACH = 0.3
_LEAST_REACH = 0.1
_VIEWED = dict(zip(VIEWS, ("As measured", "Against peers"), strict=True))
_LABEL_PX, _HEIGHTS = 12, ((16, 22), (32, 14), (64, 9), (128, 6), (10**9, 4))


def heat_section(look: DiagnosisPageModel, sight: Sight) -> Element:
    """The section with its choice of metrics; its pictures need no script."""
    first = _first(look, sight)
    box = element("div", {"class": "heatbox"})
    append(box, *(_radio("metric", f"m-{metric}", metric is first) for metric in sight.values))
    append(box, *(_radio("view", f"v-{view}", view == VIEWS[0]) for view in _views(sight)))
    metrics = (_label(f"m-{metric}", TITLES[metric]) for metric in sight.values)
    append(box, element("div", {"class": "pills", "role": "group", "aria-label": "Metric"}, *metrics))
    if not sight.is_of_one:
        views = (_label(f"v-{view}", _VIEWED[view]) for view in VIEWS)
        append(box, element("div", {"class": "pills views", "role": "group", "aria-label": "View"}, *views))
    append(
        box,
        _heat(look, sight),
        element("p", {"id": "readout", "class": "readout", "role": "status"}, "\u00a0"),
    )
    notes = [f"One row is a GPU, one column {sight.width_s:g} s. Grey: nothing was told."]
    if sight.left_out:
        notes.append(f"{sight.left_out} GPUs that nobody accuses are left out here; all were judged.")
    return section(
        "heat",
        "GPU × time",
        element("p", {"class": "reading"}, _reading(sight)),
        box,
        items("notes", notes),
    )


def _views(sight: Sight) -> tuple[str, ...]:
    return VIEWS[:1] if sight.is_of_one else VIEWS


def scale(sight: Sight, metric: Metric) -> tuple[float, float]:
    """What the ends of the colours stand for: nearly all values lie between, and who is accused."""
    rows = sight.values[metric]
    known, named = rows[np.isfinite(rows)], rows[sight.culprit]
    if not known.size:
        return 0.0, 1.0
    low, high = (float(quantile(known[None, :], q)[0]) for q in (0.005, 0.995))
    if (named := named[np.isfinite(named)]).size:
        ends = [float(quantile(named[None, :], q)[0]) for q in (0.05, 0.95)]
        low, high = min(low, ends[0]), max(high, ends[1])
    lacking = _LEAST_REACH * max(1.0, abs(high)) - (high - low)
    if lacking > 0:
        # Nothing is more than the whole: what is always all of it is at the end.
        above = lacking / 2 if metric in BYTES else min(lacking / 2, max(0.0, 1.0 - high))
        low, high = max(0.0, low - lacking + above), high + above
    return low, high if metric in BYTES else min(high, max(1.0, low + _LEAST_REACH))


def against_peers(sight: Sight, metric: Metric) -> Matrix:
    """Of each cell the relative difference to the median of its group at that time, NaN is a gap."""
    values = sight.values[metric]
    apart = np.full(values.shape, np.nan)
    for group in np.unique(sight.of):
        rows = sight.of == group
        usual = median(values[rows].T)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = values[rows] / usual - 1.0
        # What nobody does (a pause, a link that lies idle) is no difference.
        floor = 0.02 * max(1e-9, float(np.nanmax(values, initial=0.0)))
        still = np.isfinite(values[rows]) & ~(usual > floor)
        apart[rows] = np.where(still, values[rows] if metric is Metric.THROTTLE else 0.0, relative)
    return apart


def _first(look: DiagnosisPageModel, sight: Sight) -> Metric | None:
    for item in look.verdict.evidence:
        metric = metric_of(item.metric)
        if metric in sight.values:
            return metric
    return next(iter(sight.values), None)


def _radio(group: str, name: str, checked: bool) -> Element:
    attributes = {"type": "radio", "name": group, "id": name, "class": "pick"}
    return element("input", {**attributes, **({"checked": "checked"} if checked else {})})


def _label(name: str, text: str) -> Element:
    return element("label", {"for": name}, text)


def _heat(look: DiagnosisPageModel, sight: Sight) -> Element:
    each = next(px for most, px in _HEIGHTS if sight.n_rows <= most)
    height = each * sight.n_rows
    plot = element("div", {"class": "plot"})
    keys = element("div", {"class": "keys"})
    for metric, rows in sight.values.items():
        low, high = scale(sight, metric)
        measured = (rows - low) / (high - low)
        append(plot, _image(metric, "measured", measured, (low, high), height))
        append(keys, _key(metric, "measured", shown(metric, low), shown(metric, high)))
        if not sight.is_of_one:
            apart = 0.5 + against_peers(sight, metric) / (2 * _PEERS_REACH)
            append(plot, _image(metric, "peers", apart, (-_PEERS_REACH, _PEERS_REACH), height))
            append(keys, _key(metric, "peers", f"−{_PEERS_REACH:.0%}", f"+{_PEERS_REACH:.0%}"))
    append(plot, _overlay(look, sight, each, height))
    facts = {
        "data-start": f"{sight.start_s:.3f}",
        "data-width": f"{sight.width_s:.6g}",
        "data-zone": look.timezone,
    }
    return element(
        "div",
        {"class": "heat", **facts},
        _names(sight, each, height),
        plot,
        element("span", None),
        axis_element(sight, look.timezone),
        element("span", None),
        keys,
    )


def _image(metric: Metric, view: str, levels: Matrix, ends: tuple[float, float], height: int) -> Element:
    alt = f"{TITLES[metric]} of each GPU over time" + (", against peers" if view == "peers" else "")
    return element(
        "img",
        {
            "class": f"p-{metric} v-{view}",
            "alt": alt,
            "height": str(height),
            "data-title": TITLES[metric],
            "data-low": f"{ends[0]:.6g}",
            "data-high": f"{ends[1]:.6g}",
            "data-bytes": str(int(metric in BYTES)),
            "src": picture(levels, _palette(view)),
        },
    )


def _palette(view: str) -> list[Colour]:
    return sequential() if view == "measured" else diverging()


def _key(metric: Metric, view: str, least: str, most: str) -> Element:
    ramp = np.linspace(0, 1, N_LEVELS)[None, :]
    bar = element("img", {"class": "ramp", "alt": "", "height": "10", "src": picture(ramp, _palette(view))})
    inside = element("div", None, element("span", None, least), bar, element("span", None, most))
    return element("div", {"class": f"key p-{metric} v-{view}"}, inside)


def _names(sight: Sight, each: int, height: int) -> Element:
    """Nodes beside their rows; whoever is accused is named at its own row."""
    svg = element("svg", {"class": "names", "width": "100%", "height": str(height), "aria-hidden": "true"})
    row = 0
    free_from = -_LABEL_PX
    several = len(np.unique(sight.of)) > 1
    keyed = zip((worker.node for worker in sight.workers), sight.of, strict=True)
    for (node, group), members in groupby(keyed):
        rows = len(list(members))
        top, middle = row * each, (row + rows / 2) * each
        if several:
            tone = f"f-{group_tone(int(group))}"
            append(
                svg,
                element(
                    "rect", {"class": tone, "x": "0", "y": str(top), "width": "4", "height": str(rows * each)}
                ),
            )
        if middle - free_from >= _LABEL_PX:
            append(svg, element("text", {"class": "f-muted", "x": "9", "y": f"{middle + 4:.1f}"}, node))
            free_from = int(middle)
        row += rows
    taken = -_LABEL_PX
    for at in np.flatnonzero(sight.culprit):
        y = (int(at) + 0.5) * each
        half = max(2.0, min(4.0, each / 2))
        arrow = element("path", {"d": f"M-8-{half}L-1 0L-8 {half}z"})
        append(svg, element("svg", {"class": "mark", "x": "100%", "y": f"{y:.1f}"}, arrow))
        if y - taken >= _LABEL_PX:
            worker = sight.workers[at]
            text = worker.name if not worker.device else f"GPU {worker.device[-6:]}"
            text = text if worker.index is None else f"GPU {worker.index}"
            svg_text = element(
                "text", {"class": "named", "x": "100%", "y": f"{y + 4:.1f}", "dx": "-11"}, text
            )
            append(svg, svg_text)
            taken = int(y)
    return svg


def _overlay(look: DiagnosisPageModel, sight: Sight, each: int, height: int) -> Element:
    svg = element("svg", {"class": "over", "width": "100%", "height": str(height), "aria-hidden": "true"})
    edges = [at for at, (a, b) in enumerate(pairwise(sight.of), 1) if a != b]
    for at in edges:
        y = str(at * each)
        append(svg, element("line", {"class": "edge", "x1": "0", "x2": "100%", "y1": y, "y2": y}))
    append(svg, *time_lines(look, sight, height))
    left = 0.0 if look.verdict.since_s is None else sight.share(look.verdict.since_s)
    right = 1.0 if look.verdict.until_s is None else sight.share(look.verdict.until_s)
    for first, last in _runs(sight.culprit):
        attributes = {
            "x": f"{100 * left:.2f}%",
            "width": f"{100 * max(right - left, 0.005):.2f}%",
            "y": str(first * each - 1),
            "height": str((last - first) * each + 2),
        }
        append(
            svg,
            element("rect", {"class": "frame under", **attributes}),
            element("rect", {"class": "frame", **attributes}),
        )
    return svg


def _runs(marked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[first, last) of rows that follow each other."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _reading(sight: Sight) -> str:
    n = int(sight.culprit.sum())
    who = f"{n} of {sight.n_rows + sight.left_out} GPUs" if n else ""
    framed = (
        f"{who} {'is' if n == 1 else 'are'} framed for as long as it was so. " if n else "Nobody is framed. "
    )
    reading = f"{framed}Dark is little, bright is much."
    return reading if sight.is_of_one else f"{reading} “Against peers” shows who lies apart from its like."
