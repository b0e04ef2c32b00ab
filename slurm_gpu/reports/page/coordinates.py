"""Create the element for parallel coordinates: an interactive plot, its data, and a static picture."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from slurm_gpu.reports.figure import ParallelCoordinates, TableColumn
from slurm_gpu.reports.page.draw import WIDE
from slurm_gpu.reports.page.lines import draw_lines
from slurm_gpu.reports.page.markup import element, raw
from slurm_gpu.reports.page.parallel import pack
from slurm_gpu.reports.page.svg import svg_element

# The number of lines in the static picture; each line takes about 60 bytes.
_STILL_LINES = 800


def coordinates_element(chart: ParallelCoordinates, title: str, columns: Sequence[TableColumn]) -> Element:
    """Return the plot and its controls, which the script fills."""
    packed = pack(chart, {column.name: column.about for column in columns})
    still = svg_element(draw_lines(chart, WIDE, _STILL_LINES), title, "chart")
    plot = element(
        "div",
        {"class": "plot", "data-part": "plot", "hidden": "hidden"},
        element(
            "canvas", {"data-part": "canvas", "role": "img", "aria-label": f"{title}. Use the limits below."}
        ),
        element("svg", {"class": "overlay", "data-part": "overlay", "aria-hidden": "true"}),
        element("div", {"data-part": "heads", "role": "group", "aria-label": "Axes"}),
    )
    return element(
        "div",
        {"id": "parallel"},
        element("p", {"class": "count", "data-part": "count", "aria-live": "polite"}, "Drawing the jobs …"),
        element("p", {"class": "medians", "data-part": "medians", "aria-live": "polite"}),
        element("div", {"class": "legend", "data-part": "legend", "aria-label": "Colours: number of nodes"}),
        element("div", {"class": "frame"}, plot),
        element("noscript", None, still),
        element(
            "div",
            {"class": "controls", "data-part": "controls", "hidden": "hidden"},
            element(
                "fieldset",
                {"data-part": "limits"},
                element("legend", None, "Limits"),
            ),
            element(
                "fieldset",
                None,
                element("legend", None, "Applications"),
                element("div", {"class": "applications", "data-part": "applications"}),
            ),
            element(
                "button",
                {"type": "button", "class": "clear", "data-part": "clear", "disabled": "disabled"},
                "Show all",
            ),
        ),
        element(
            "p",
            {"class": "files"},
            "Drag along an axis to select a range, or drag its name to move the axis. "
            "The bars next to an axis count jobs.",
        ),
        raw("script", {"type": "application/json", "id": "parallel-facts"}, packed.facts),
        raw("script", {"type": "application/octet-stream", "id": "parallel-bytes"}, packed.data),
    )
