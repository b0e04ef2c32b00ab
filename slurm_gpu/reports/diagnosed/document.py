"""Render a diagnosis as a self-contained HTML file or as a page of a site.

Its pictures are inline. A Content-Security-Policy allows only the page's own style and script, which are
identified by their hashes. The script only shows the value under the pointer; everything else works without
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from slurm_gpu.reports.diagnosed.heat import heat_section
from slurm_gpu.reports.diagnosed.page_model import CaseView, DiagnosisPageModel, view_of
from slurm_gpu.reports.diagnosed.relations import relations_section
from slurm_gpu.reports.diagnosed.roles import roles_section
from slurm_gpu.reports.diagnosed.style import page_script, page_style
from slurm_gpu.reports.diagnosed.timelines import courses_section
from slurm_gpu.reports.diagnosed.verdict_card import verdict_card
from slurm_gpu.reports.page.content_policy import content_policy
from slurm_gpu.reports.page.markup import append, element, html_text, items, raw


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLinks:
    """The addresses to which the page links if a site serves it."""

    style: str
    script: str
    icon: str
    job: str
    """The address of the job's page."""
    again: str = ""
    """The address for reloading the page if a requested window has not yet arrived from the job's nodes."""
    silent: str = ""
    """The nodes that have not answered yet; empty unless other nodes have answered."""


def diagnosis_html(page: DiagnosisPageModel, site: SiteLinks | None = None) -> str:
    """Return the HTML document; equal models give identical text.

    With `site`, slurm-gpuweb serves the style, the script and the Content-Security-Policy header. Otherwise,
    the document contains all three.
    """
    view = view_of(page.case, page.verdict)
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, page.title),
    )
    main = element("main", None, verdict_card(page))
    append(main, *_pictures(page, view))
    body = element("body", None, _header(page, site), main, _footer(page, alone=site is None))
    if site is None:
        style, script = page_style(), page_script()
        policy = content_policy(style, script, "img-src data:")
        head.insert(1, element("meta", {"http-equiv": "Content-Security-Policy", "content": policy}))
        append(head, raw("style", {}, style))
        append(body, raw("script", {}, script))
    else:
        append(
            head,
            element("link", {"rel": "icon", "href": site.icon, "type": "image/svg+xml"}),
            element("link", {"rel": "stylesheet", "href": site.style}),
            raw("script", {"src": site.script, "defer": "defer"}, ""),
        )
    return html_text(element("html", {"lang": "en"}, head, body))


def _pictures(page: DiagnosisPageModel, view: CaseView) -> list[Element | None]:
    if not view.n_columns or not view.values:
        return []
    return [
        heat_section(page, view),
        courses_section(page, view),
        relations_section(view),
        roles_section(page, view),
    ]


def _header(page: DiagnosisPageModel, site: SiteLinks | None) -> Element:
    back = note = None
    if site is not None:
        back = element("p", {"class": "back"}, element("a", {"href": site.job}, "The job"))
    if site is not None and site.again:
        link = element("a", {"href": site.again}, "Reload in 20 s")
        text = "The last ten minutes at full resolution were requested from the nodes"
        text += f"; no answer yet from {site.silent}: " if site.silent else ": "
        note = element("p", {"class": "note"}, text, link, ".")
    title = element("h1", None, page.title)
    return element("header", None, back, title, items("about", page.about), note)


def _footer(page: DiagnosisPageModel, *, alone: bool) -> Element:
    text = (
        f"Made by slurm-gpu, {page.made}; times are in {page.timezone}. A dash marks an unknown value; 0 is "
        "a measured value."
    )
    text += " This page loads nothing from other hosts." if alone else ""
    return element("footer", None, element("p", None, text))
