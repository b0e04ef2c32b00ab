"""Render the page of a policy as Markdown, for a wiki or a site's documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_gpu.policy.pages.page import CLOSING, TITLE, PolicyPage, Section

# Markup anywhere in a line, and at its beginning; both are escaped in texts from policy.yaml.
_MARKUP = re.compile(r"([\\`*_\[\]<>#|~&])")
_OPENING = re.compile(r"^(\d*)([-+=.)])")


def render_markdown(page: PolicyPage) -> str:
    """Return a whole document that begins with a first-level heading."""
    return "\n".join(_lines(page))


def _lines(page: PolicyPage) -> Iterator[str]:
    yield f"# {TITLE}"
    for section in page.rules:
        yield from _section(section)
    for part in page.others:
        yield ""
        yield f"# {part.title}"
        yield ""
        yield part.opening
        for section in part.sections:
            yield from _section(section)
    yield ""
    yield CLOSING
    if page.contact is not None:
        yield ""
        yield f"Questions: {_plain(page.contact)}"


def _section(section: Section) -> Iterator[str]:
    yield ""
    yield f"## {_plain(section.name)}"
    yield ""
    yield f"*{_plain(section.whom)}*"
    yield ""
    yield _plain(section.why)
    points = (*section.limits, *section.remarks, *section.exceptions)
    if points:
        yield ""
    yield from (f"- {_plain(point)}" for point in points)


def _plain(text: str) -> str:
    return _OPENING.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", " ".join(text.split())))
