"""Render a report as one self-contained HTML file.

Its style and script are inline, and a Content-Security-Policy allows only these two, by their hashes. A
browser would therefore not execute a user's name as code even if the name became markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from xml.etree.ElementTree import Element

from slurm_gpu.reports.figure import Figure, ParallelCoordinates
from slurm_gpu.reports.page.content_policy import content_policy
from slurm_gpu.reports.page.coordinates import coordinates_element
from slurm_gpu.reports.page.draw import NARROW, WIDE, draw, is_empty
from slurm_gpu.reports.page.markup import append, element, html_text, items, raw, section
from slurm_gpu.reports.page.palette import DARK, LIGHT, N_NODE_CLASSES, tone_rules, variables
from slurm_gpu.reports.page.script import page_script
from slurm_gpu.reports.page.svg import svg_element
from slurm_gpu.reports.page.table_markup import table_element

_UNIT = re.compile(r"(?<=\d) (?=(?:%|h|s|min)(?!\w))")


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of the page."""

    name: str
    value: str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """The content of the page."""

    title: str
    period: str
    made: str
    tiles: Sequence[Tile]
    figures: Sequence[Figure]
    timezone: str = "UTC"
    with_files: bool = True
    """Whether the page links to the files of tables and pictures."""


def page_html(page: ReportPage) -> str:
    """Return the HTML document; equal pages give identical text."""
    style = _style()
    script = page_script()
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": content_policy(style, script)}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, page.title),
        raw("style", {}, style),
    )
    body = element(
        "body",
        None,
        element("a", {"class": "skip", "href": "#figures"}, "Skip to the figures"),
        _header(page),
        element("main", {"id": "figures"}, *(_section(figure, page) for figure in page.figures)),
        _footer(page),
        raw("script", {}, script),
    )
    return html_text(element("html", {"lang": "en"}, head, body))


def _header(page: ReportPage) -> Element:
    tiles = element("dl", {"class": "tiles"})
    for tile in page.tiles:
        unit = element("small", None, tile.unit) if tile.unit else None
        append(
            tiles, element("div", None, element("dt", None, tile.name), element("dd", None, tile.value, unit))
        )
    links = (element("li", None, element("a", {"href": f"#{f.id}"}, f.title)) for f in page.figures)
    return element(
        "header",
        None,
        element("h1", None, page.title),
        element("p", {"class": "period"}, page.period),
        tiles if page.tiles else None,
        element("nav", {"aria-label": "Figures"}, element("ol", None, *links)),
    )


def _section(figure: Figure, page: ReportPage) -> Element:
    found = section(figure.id, figure.title, element("p", {"class": "reading"}, _unbroken(figure.reading)))
    if isinstance(figure.chart, ParallelCoordinates) and not is_empty(figure.chart):
        append(found, coordinates_element(figure.chart, figure.title, figure.table.columns))
    else:
        for width, name in ((WIDE, "wide"), (NARROW, "narrow")):
            append(found, svg_element(draw(figure.chart, width), figure.title, f"chart {name}"))
    if figure.notes:
        append(found, items("notes", figure.notes))
    append(found, table_element(figure.table, page.timezone, with_files=page.with_files))
    if page.with_files:
        append(found, _links(figure))
    return found


def _unbroken(text: str) -> str:
    """Return the text with a non-breaking space between each number and its unit."""
    return _UNIT.sub("\u00a0", text)


def _links(figure: Figure) -> Element:
    line = element("p", {"class": "files"}, "Other files: ")
    name = figure.table.name
    for place, (text, path) in enumerate(
        (
            ("CSV", f"tables/{name}.csv"),
            ("Parquet", f"tables/{name}.parquet"),
            ("SVG", f"figures/{figure.id}.svg"),
            ("PNG", f"figures/{figure.id}.png"),
        )
    ):
        append(line, " · " if place else None, element("a", {"href": path}, text))
    return line


def _footer(page: ReportPage) -> Element:
    return element(
        "footer",
        None,
        element(
            "p",
            None,
            f"Made by slurm-gpu, {page.made}. A dash marks an unknown value; 0 is a measured value. "
            "This page loads nothing from other hosts.",
        ),
    )


def _style() -> str:
    colours = f":root{{{variables(LIGHT)}}}"
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
    swatches = "".join(f".swatch.node-{i}{{background:var(--node-{i})}}" for i in range(N_NODE_CLASSES))
    printing = f":root.printing{{{variables(LIGHT)}}}"
    rules = files("slurm_gpu.reports.page").joinpath("report.css").read_text("utf-8")
    return f"{colours}{dark}{printing}{tone_rules()}{swatches}\n{rules}"
