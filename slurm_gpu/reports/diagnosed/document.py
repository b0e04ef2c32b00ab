"""The page on one diagnosis: one HTML file that asks nobody for anything.

Its pictures are within it. A Content-Security-Policy allows its own style and script alone, by their hashes,
and the script only tells what is under the pointer: all that there is to see is there without it.
"""

from __future__ import annotations

from importlib.resources import files
from xml.etree.ElementTree import Element

from slurm_gpu.reports.diagnosed.courses import courses_section, line_rules
from slurm_gpu.reports.diagnosed.heat import choice_rules, heat_section
from slurm_gpu.reports.diagnosed.look import Look, Sight, sight_of
from slurm_gpu.reports.diagnosed.relations import relations_section, shade_rules
from slurm_gpu.reports.diagnosed.roles import roles_section
from slurm_gpu.reports.diagnosed.verdictcard import verdict_card
from slurm_gpu.reports.page.contentpolicy import content_policy
from slurm_gpu.reports.page.markup import append, element, html_text, raw
from slurm_gpu.reports.page.palette import DARK, LIGHT, N_SERIES, tone_rules, variables


def diagnosis_html(look: Look) -> str:
    """The whole document; the same look makes the same text."""
    sight = sight_of(look.case, look.verdict)
    here = files(__package__)
    style = _style(sight, here.joinpath("diagnosis.css").read_text("utf-8"))
    script = here.joinpath("pointing.js").read_text("utf-8")
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element(
            "meta",
            {
                "http-equiv": "Content-Security-Policy",
                "content": content_policy(style, script, "img-src data:"),
            },
        ),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "referrer", "content": "no-referrer"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, look.title),
        raw("style", {}, style),
    )
    main = element("main", None, verdict_card(look))
    append(main, *_pictures(look, sight))
    body = element("body", None, _header(look), main, _footer(look), raw("script", {}, script))
    return html_text(element("html", {"lang": "en"}, head, body))


def _pictures(look: Look, sight: Sight) -> list[Element | None]:
    if not sight.n_columns or not sight.values:
        return []
    return [
        heat_section(look, sight),
        courses_section(look, sight),
        relations_section(sight),
        roles_section(look, sight),
    ]


def _header(look: Look) -> Element:
    about = (element("li", None, item) for item in look.about)
    return element("header", None, element("h1", None, look.title), element("ul", {"class": "about"}, *about))


def _footer(look: Look) -> Element:
    text = (
        f"Made by slurm-gpu, {look.made}; times are of {look.timezone}. A dash stands for what is not known; "
        "0 was measured. This page asks no other host for anything."
    )
    return element("footer", None, element("p", None, text))


def _style(sight: Sight, rules: str) -> str:
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
    swatches = "".join(f".b-s{tone}{{background:var(--s{tone})}}" for tone in range(N_SERIES))
    made = (tone_rules(), swatches, shade_rules(), line_rules(), choice_rules(sight))
    return f":root{{{variables(LIGHT)}}}{dark}{''.join(made)}\n{rules}"
