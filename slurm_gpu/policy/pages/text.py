"""Render the page of a policy as plain text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from slurm_gpu.policy.pages.page import CLOSING, TITLE, PolicyPage, Section

# Maximum line length; longer lines are hard to read.
WIDTH = 88


def render_text(page: PolicyPage, width: int = WIDTH) -> str:
    """Return lines of at most `width` columns, except for longer words such as addresses."""
    return "\n".join(_lines(page, width))


def _lines(page: PolicyPage, width: int) -> Iterator[str]:
    yield TITLE
    for section in page.rules:
        yield ""
        yield from _section(section, width)
    for part in page.others:
        yield ""
        yield from _wrapped(f"{part.title}. {part.opening}", width)
        for section in part.sections:
            yield ""
            yield from _section(section, width)
    yield ""
    yield from _wrapped(CLOSING, width)
    if page.contact is not None:
        yield f"Questions: {page.contact}"


def _section(section: Section, width: int) -> Iterator[str]:
    yield from _wrapped(f"{section.name}  ({section.whom})", width, hanging="  ")
    yield from _wrapped(section.why, width, "    ")
    for line in section.limits:
        yield from _wrapped(line, width, "    ", "  ")
    for text in (*section.remarks, *section.exceptions):
        yield from _wrapped(text, width, "    ")


def _wrapped(text: str, width: int, indent: str = "", hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
