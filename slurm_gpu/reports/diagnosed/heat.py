"""Draw heat maps of each metric by GPU and time, as measured and relative to peers, with suspects framed."""

from __future__ import annotations

from itertools import groupby, pairwise
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, quantile
from slurm_gpu.reports.diagnosed.page_model import CaseView, DiagnosisPageModel
from slurm_gpu.reports.diagnosed.raster import N_LEVELS, Colour, diverging, picture, sequential
from slurm_gpu.reports.diagnosed.style import VIEWS
from slurm_gpu.reports.diagnosed.time_axis import axis_element, time_lines
from slurm_gpu.reports.diagnosed.words import BYTES, TITLES, group_tone, metric_of, shown
from slurm_gpu.reports.page.markup import append, element, items, section
from slurm_gpu.text.units import counted

# The relative difference from peers at which the colour is strongest.
_PEERS_REACH = 0.3
_LEAST_REACH = 0.1
_VIEWED = dict(zip(VIEWS, ("As measured", "Against peers"), strict=True))
_LABEL_PX, _HEIGHTS = 12, ((16, 22), (32, 14), (64, 9), (128, 6), (10**9, 4))


def heat_section(page: DiagnosisPageModel, view: CaseView) -> Element:
    """Return the section with the heat maps and the selection of metrics, which works without a script."""
    first = _first(page, view)
    box = element("div", {"class": "heatbox"})
    append(box, *(_radio("metric", f"m-{metric}", metric is first) for metric in view.values))
    append(
        box,
        *(_radio("view", f"v-{name}", name == VIEWS[0]) for name in (VIEWS[:1] if view.is_of_one else VIEWS)),
    )
    metrics = (_label(f"m-{metric}", TITLES[metric]) for metric in view.values)
    append(box, element("div", {"class": "pills", "role": "group", "aria-label": "Metric"}, *metrics))
    if not view.is_of_one:
        views = (_label(f"v-{view}", _VIEWED[view]) for view in VIEWS)
        append(box, element("div", {"class": "pills views", "role": "group", "aria-label": "View"}, *views))
    append(
        box,
        _heat(page, view),
        element("p", {"id": "readout", "class": "readout", "role": "status"}, "\u00a0"),
    )
    notes = [f"Each row is a GPU, and each column spans {view.width_s:g} s. Grey means no data."]
    if view.left_out:
        notes.append(f"Not shown: {counted(view.left_out, 'GPU')} without suspicion; all GPUs were analysed.")
    return section(
        "heat",
        "GPU × time",
        element("p", {"class": "reading"}, _reading(view)),
        box,
        items("notes", notes),
    )


def scale(view: CaseView, metric: Metric) -> tuple[float, float]:
    """Return the ends of the colour scale, which covers the suspects and nearly all other values."""
    rows = view.values[metric]
    known, named = rows[np.isfinite(rows)], rows[view.culprit]
    if not known.size:
        return 0.0, 1.0
    low, high = (float(quantile(known[None, :], q)[0]) for q in (0.005, 0.995))
    if (named := named[np.isfinite(named)]).size:
        ends = [float(quantile(named[None, :], q)[0]) for q in (0.05, 0.95)]
        low, high = min(low, ends[0]), max(high, ends[1])
    lacking = _LEAST_REACH * max(1.0, abs(high)) - (high - low)
    if lacking > 0:
        # A metric that is always 100 % is shown in the last colour.
        above = lacking / 2 if metric in BYTES else min(lacking / 2, max(0.0, 1.0 - high))
        low, high = max(0.0, low - lacking + above), high + above
    return low, high if metric in BYTES else min(high, max(1.0, low + _LEAST_REACH))


def against_peers(view: CaseView, metric: Metric) -> Matrix:
    """Return each cell's relative difference from its group's median at the same time; NaN if unknown."""
    values = view.values[metric]
    apart = np.full(values.shape, np.nan)
    for group in np.unique(view.of):
        rows = view.of == group
        usual = median(values[rows].T)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = values[rows] / usual - 1.0
        # If the whole group pauses, or its link is idle, the difference is 0, except for throttling.
        floor = 0.02 * max(1e-9, float(np.nanmax(values, initial=0.0)))
        still = np.isfinite(values[rows]) & ~(usual > floor)
        apart[rows] = np.where(still, values[rows] if metric is Metric.THROTTLE else 0.0, relative)
    return apart


def _first(page: DiagnosisPageModel, view: CaseView) -> Metric | None:
    for item in page.verdict.evidence:
        metric = metric_of(item.metric)
        if metric in view.values:
            return metric
    return next(iter(view.values), None)


def _radio(group: str, name: str, checked: bool) -> Element:
    attributes = {"type": "radio", "name": group, "id": name, "class": "pick"}
    return element("input", {**attributes, **({"checked": "checked"} if checked else {})})


def _label(name: str, text: str) -> Element:
    return element("label", {"for": name}, text)


def _heat(page: DiagnosisPageModel, view: CaseView) -> Element:
    each = next(px for most, px in _HEIGHTS if view.n_rows <= most)
    height = each * view.n_rows
    plot = element("div", {"class": "plot"})
    keys = element("div", {"class": "keys"})
    for metric, rows in view.values.items():
        low, high = scale(view, metric)
        measured = (rows - low) / (high - low)
        append(plot, _image(metric, "measured", measured, (low, high), height))
        append(keys, _key(metric, "measured", shown(metric, low), shown(metric, high)))
        if not view.is_of_one:
            apart = 0.5 + against_peers(view, metric) / (2 * _PEERS_REACH)
            append(plot, _image(metric, "peers", apart, (-_PEERS_REACH, _PEERS_REACH), height))
            append(keys, _key(metric, "peers", f"−{_PEERS_REACH:.0%}", f"+{_PEERS_REACH:.0%}"))
    append(plot, _overlay(page, view, each, height))
    facts = {
        "data-start": f"{view.start_s:.3f}",
        "data-width": f"{view.width_s:.6g}",
        "data-zone": page.timezone,
    }
    return element(
        "div",
        {"class": "heat", **facts},
        _names(view, each, height),
        plot,
        element("span", None),
        axis_element(view, page.timezone),
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


def _names(view: CaseView, each: int, height: int) -> Element:
    """Return the names of nodes next to their rows, and the names of suspected GPUs next to theirs."""
    svg = element("svg", {"class": "names", "width": "100%", "height": str(height), "aria-hidden": "true"})
    row = 0
    free_from = -_LABEL_PX
    several = len(np.unique(view.of)) > 1
    keyed = zip((worker.node for worker in view.workers), view.of, strict=True)
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
    for at in np.flatnonzero(view.culprit):
        y = (int(at) + 0.5) * each
        half = max(2.0, min(4.0, each / 2))
        arrow = element("path", {"d": f"M-8-{half}L-1 0L-8 {half}z"})
        append(svg, element("svg", {"class": "mark", "x": "100%", "y": f"{y:.1f}"}, arrow))
        if y - taken >= _LABEL_PX:
            worker = view.workers[at]
            text = worker.name if not worker.device else f"GPU {worker.device[-6:]}"
            text = text if worker.index is None else f"GPU {worker.index}"
            svg_text = element(
                "text", {"class": "named", "x": "100%", "y": f"{y + 4:.1f}", "dx": "-11"}, text
            )
            append(svg, svg_text)
            taken = int(y)
    return svg


def _overlay(page: DiagnosisPageModel, view: CaseView, each: int, height: int) -> Element:
    svg = element("svg", {"class": "over", "width": "100%", "height": str(height), "aria-hidden": "true"})
    edges = [at for at, (a, b) in enumerate(pairwise(view.of), 1) if a != b]
    for at in edges:
        y = str(at * each)
        append(svg, element("line", {"class": "edge", "x1": "0", "x2": "100%", "y1": y, "y2": y}))
    append(svg, *time_lines(page, view, height))
    left = 0.0 if page.verdict.since_s is None else view.share(page.verdict.since_s)
    right = 1.0 if page.verdict.until_s is None else view.share(page.verdict.until_s)
    for first, last in _runs(view.culprit):
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
    """Return the ranges [first, last) of consecutive marked rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _reading(view: CaseView) -> str:
    n = int(view.culprit.sum())
    who = f"{n} of {view.n_rows + view.left_out} GPUs" if n else ""
    framed = (
        f"{who} {'is' if n == 1 else 'are'} framed in the suspicious period. "
        if n
        else "No GPU is suspected. "
    )
    reading = f"{framed}Dark is low, bright is high."
    return reading if view.is_of_one else f"{reading} “Against peers” shows differences from similar GPUs."
