"""The page on one diagnosis: one HTML file that asks nobody for anything, or one page of a site.

Its pictures are within it. A Content-Security-Policy allows its own style and script alone, by their hashes,
and the script only tells what is under the pointer: all that there is to see is there without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from slurm_gpu.reports.diagnosed.heat import heat_section
from slurm_gpu.reports.diagnosed.page_model import DiagnosisPageModel, Sight, sight_of
from slurm_gpu.reports.diagnosed.relations import relations_section
from slurm_gpu.reports.diagnosed.roles import roles_section
from slurm_gpu.reports.diagnosed.style import page_script, page_style
from slurm_gpu.reports.diagnosed.timelines import courses_section
from slurm_gpu.reports.diagnosed.verdict_card import verdict_card
from slurm_gpu.reports.page.content_policy import content_policy
from slurm_gpu.reports.page.markup import append, element, html_text, items, raw


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSite:
    """Where a site that serves the page has what else belongs to it, by address."""

    style: str
    script: str
    icon: str
    job: str
    """The page of the job, to go back to."""
    again: str = ""
    """This page itself, where its nodes have been asked for what it does not show yet."""
    silent: str = ""
    """Which of its nodes have not answered yet, where others have."""


def diagnosis_html(look: DiagnosisPageModel, site: OnSite | None = None) -> str:
    """The whole document; the same look makes the same text.

    Of a `site` it takes style and script, and its answer says by which policy; else both stand within.
    """
    sight = sight_of(look.case, look.verdict)
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, look.title),
    )
    main = element("main", None, verdict_card(look))
    append(main, *_pictures(look, sight))
    body = element("body", None, _header(look, site), main, _footer(look, alone=site is None))
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


def _pictures(look: DiagnosisPageModel, sight: Sight) -> list[Element | None]:
    if not sight.n_columns or not sight.values:
        return []
    return [
        heat_section(look, sight),
        courses_section(look, sight),
        relations_section(sight),
        roles_section(look, sight),
    ]


def _header(look: DiagnosisPageModel, site: OnSite | None) -> Element:
    back = note = None
    if site is not None:
        back = element("p", {"class": "back"}, element("a", {"href": site.job}, "The job"))
    if site is not None and site.again:
        link = element("a", {"href": site.again}, "in 20 s this page says more")
        text = "Its nodes have been asked for the last ten minutes at full resolution"
        text += f", and {site.silent} has not answered yet: " if site.silent else ": "
        note = element("p", {"class": "note"}, text, link, ".")
    title = element("h1", None, look.title)
    return element("header", None, back, title, items("about", look.about), note)


def _footer(look: DiagnosisPageModel, *, alone: bool) -> Element:
    text = (
        f"Made by slurm-gpu, {look.made}; times are of {look.timezone}. A dash stands for what is not known; "
        "0 was measured."
    )
    text += " This page asks no other host for anything." if alone else ""
    return element("footer", None, element("p", None, text))
