"""Render a report as one self-contained HTML file.

Its style and script are inline, and a Content-Security-Policy allows only these two, by their hashes. A
browser would therefore not execute a user's name as code even if the name became markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from xml.etree.ElementTree import Element

from slurm_gpu.reports.figure import Chapter, Figure, ParallelCoordinates
from slurm_gpu.reports.findings import Finding
from slurm_gpu.reports.page.content_policy import content_policy
from slurm_gpu.reports.page.coordinates import coordinates_element
from slurm_gpu.reports.page.draw import NARROW, WIDE, draw
from slurm_gpu.reports.page.markup import append, element, html_text, items, raw, section
from slurm_gpu.reports.page.palette import DARK, LIGHT, N_NODE_CLASSES, tone_rules, variables
from slurm_gpu.reports.page.script import page_script
from slurm_gpu.reports.page.svg import svg_element
from slurm_gpu.reports.page.table_markup import table_element

_UNIT = re.compile(r"(?<=\d) (?=(?:%|h|s|min)(?!\w))")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """The content of the page."""

    title: str
    period: str
    made: str
    findings: Sequence[Finding]
    chapters: Sequence[Chapter]
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
    contents = chain.from_iterable(_chapter(chapter, page) for chapter in page.chapters)
    body = element(
        "body",
        None,
        element("a", {"class": "skip", "href": "#figures"}, "Skip to the figures"),
        _header(page),
        element("main", {"id": "figures"}, *contents),
        _footer(page),
        raw("script", {}, script),
    )
    return html_text(element("html", {"lang": "en"}, head, body))


def _header(page: ReportPage) -> Element:
    titles = {figure.id: figure.title for chapter in page.chapters for figure in chapter.figures}
    return element(
        "header",
        None,
        element("h1", None, page.title),
        element("p", {"class": "period"}, page.period),
        element("dl", {"class": "findings"}, *(_finding(each, titles) for each in page.findings))
        if page.findings
        else None,
        element("nav", {"aria-label": "Figures"}, *(_contents(chapter) for chapter in page.chapters)),
    )


def _finding(finding: Finding, titles: Mapping[str, str]) -> Element:
    value = element("dd", {"class": "value"}, finding.value, " ", element("small", None, finding.unit))
    change = element("p", None, f"{_unbroken(finding.change)}. " if finding.change else None)
    if title := titles.get(finding.figure_id):
        append(change, element("a", {"href": f"#{finding.figure_id}"}, title))
    details = element("dd", None, element("p", None, _unbroken(finding.text)), change)
    return element("div", None, element("dt", None, finding.name), value, details)


def _contents(chapter: Chapter) -> Element:
    links = (
        element("li", None, element("a", {"href": f"#{figure.id}"}, figure.title))
        for figure in chapter.figures
        if not figure.is_empty
    )
    title = element("a", {"href": f"#{chapter.id}"}, chapter.title)
    return element("div", None, element("p", None, title), element("ul", None, *links))


def _chapter(chapter: Chapter, page: ReportPage) -> Iterator[Element]:
    """Yield the heading, the figures, and one line for each figure without data."""
    yield element("h2", {"id": chapter.id, "class": "chapter"}, chapter.title)
    for figure in chapter.figures:
        if not figure.is_empty:
            yield _section(figure, page)
    empty = [figure for figure in chapter.figures if figure.is_empty]
    if empty:
        lines = (
            element("li", {"id": figure.id}, element("b", None, figure.title), f": {figure.reading}")
            for figure in empty
        )
        yield element("ul", {"class": "empty"}, *lines)


def _section(figure: Figure, page: ReportPage) -> Element:
    found = section(
        figure.id, figure.title, element("p", {"class": "reading"}, _unbroken(figure.reading)), level="h3"
    )
    if isinstance(figure.chart, ParallelCoordinates):
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
