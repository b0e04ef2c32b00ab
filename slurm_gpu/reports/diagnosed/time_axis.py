"""Draw the time axis, which all drawings on the page share.

Positions are percentages of the width, so the axis fits any screen.
"""

from __future__ import annotations

import datetime as dt
from xml.etree.ElementTree import Element
from zoneinfo import ZoneInfo

from slurm_gpu.reports.diagnosed.page_model import CaseView, DiagnosisPageModel
from slurm_gpu.reports.page.markup import element
from slurm_gpu.reports.page.scales import time_ticks

_STEPS_S = (1, 2, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_MOST, _MOST_NARROW = 10, 4


def ticks(start_s: float, end_s: float, zone: str) -> list[tuple[float, str]]:
    """Return times and their labels; the times are round numbers in the given time zone."""
    span_s = end_s - start_s
    step_s = next((step for step in _STEPS_S if span_s / step <= _MOST), None)
    if step_s is None:
        return time_ticks(start_s, end_s, zone, _MOST)
    offset = dt.datetime.fromtimestamp(start_s, ZoneInfo(zone)).utcoffset()
    ahead_s = 0.0 if offset is None else offset.total_seconds()
    first = -(-(start_s + ahead_s) // step_s) * step_s - ahead_s
    form = "%H:%M" if step_s >= 60 else "%H:%M:%S"
    count = int((end_s - first) // step_s) + 1
    moments = [first + number * step_s for number in range(count)]
    return [(at, dt.datetime.fromtimestamp(at, ZoneInfo(zone)).strftime(form)) for at in moments]


def axis_element(view: CaseView, zone: str) -> Element:
    """Return an element with the labels; a narrow screen shows only some of them."""
    svg = element("svg", {"class": "time", "width": "100%", "height": "20", "aria-hidden": "true"})
    named = ticks(view.start_s, view.end_s, zone)
    each = max(1, -(-len(named) // _MOST_NARROW))
    for number, (at, name) in enumerate(named):
        share = view.share(at)
        anchor = "start" if share < 0.03 else "end" if share > 0.97 else "middle"
        attributes = {"x": f"{100 * share:.2f}%", "y": "14", "text-anchor": anchor}
        svg.append(
            element("text", {**attributes, "class": "f-muted many" if number % each else "f-muted"}, name)
        )
    return svg


def time_lines(page: DiagnosisPageModel, view: CaseView, height: int) -> list[Element]:
    """Return the lines at the start and the end of the suspicious period."""
    lines = []
    for at in (page.verdict.since_s, page.verdict.until_s):
        if at is not None and view.start_s <= at <= view.end_s:
            x = f"{100 * view.share(at):.2f}%"
            line = {"x1": x, "x2": x, "y1": "0", "y2": str(height)}
            lines += [
                element("line", {"class": "when under", **line}),
                element("line", {"class": "when", **line}),
            ]
    return lines
