"""Render the page of a policy as one HTML file without scripts, fonts or other external files."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from slurm_gpu.policy.pages.page import CLOSING, TITLE, PolicyPage, Section

_STYLE = """\
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 0; font-size: 1.1rem; }
.whom { margin: 0; opacity: .75; }
code { font-size: .95em; }"""


def render_html(page: PolicyPage) -> str:
    """Return a whole HTML document in which all texts of the policy are escaped."""
    return "\n".join(_lines(page))


def _lines(page: PolicyPage) -> Iterator[str]:
    yield "<!DOCTYPE html>"
    yield '<html lang="en">'
    yield '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    yield f"<title>{TITLE}</title>"
    yield f"<style>\n{_STYLE}\n</style></head>"
    yield "<body>"
    yield f"<h1>{TITLE}</h1>"
    for section in page.rules:
        yield from _section(section, "rule")
    for part in page.others:
        yield f"<h1>{part.title}</h1>"
        yield f"<p>{part.opening}</p>"
        for section in part.sections:
            yield from _section(section, part.kind)
    yield f"<p>{_with_code(CLOSING)}</p>"
    if page.contact is not None:
        yield f"<p>Questions: {escape(page.contact)}</p>"
    yield "</body>"
    yield "</html>"


def _section(section: Section, kind: str) -> Iterator[str]:
    # Refusals name the rule, so users can open policy.html#rule-grad-share.
    yield f'<h2 id="{kind}-{escape(section.name)}"><code>{escape(section.name)}</code></h2>'
    yield f'<p class="whom">{escape(section.whom)}</p>'
    yield f"<p>{escape(section.why)}</p>"
    points = (*section.limits, *section.remarks, *section.exceptions)
    if points:
        yield "<ul>"
        yield from (f"<li>{escape(point)}</li>" for point in points)
        yield "</ul>"


def _with_code(text: str) -> str:
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
