"""The page of a policy as plain text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from slurm_gpu.policy.page import CLOSING, TITLE, Page, Section

_WIDTH = 88


def render_text(page: Page) -> str:
    """Lines of at most 88 columns."""
    return "\n".join(_lines(page))


def _lines(page: Page) -> Iterator[str]:
    yield TITLE
    for section in page.rules:
        yield ""
        yield from _section(section)
    for part in page.others:
        yield ""
        yield f"{part.title}. {part.opening}"
        for section in part.sections:
            yield ""
            yield from _section(section)
    yield ""
    yield from textwrap.wrap(CLOSING, _WIDTH)
    if page.contact is not None:
        yield f"Questions: {page.contact}"


def _section(section: Section) -> Iterator[str]:
    yield f"{section.name}  ({section.whom})"
    yield from _wrapped(section.why)
    yield from (f"    {line}" for line in section.limits)
    for text in (*section.remarks, *section.exceptions):
        yield from _wrapped(text)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
