"""Parse the pages of the documentation."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_ELSEWHERE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "lab/README.md")
_LOGS = sorted((ROOT / "bench/results").glob("*.md"))
PAGES = [*(ROOT / name for name in _ELSEWHERE), *sorted(DOCS.glob("*.md")), *_LOGS]
_PARSER = MarkdownIt("commonmark").enable("table")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@functools.cache
def _blocks(page: Path) -> list[Token]:
    """Return the tokens of a page, cached for the tests."""
    return _PARSER.parse(page.read_text(encoding="utf-8"))


def tokens(page: Path) -> list[Token]:
    """Return the blocks of a page and their children, in order."""
    return [one for block in _blocks(page) for one in (block, *(block.children or ()))]


def links(page: Path) -> Iterator[str]:
    """Yield the targets of links and pictures."""
    for token in tokens(page):
        target = token.attrGet("src") if token.type == "image" else token.attrGet("href")
        if isinstance(target, str):
            yield target


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of headings, as code hosts and the site generate them."""
    seen: Counter[str] = Counter()
    found = set()
    for opening, inline in pairwise(_blocks(page)):
        if opening.type == "heading_open":
            text = "".join(
                one.content for one in inline.children or () if one.type in ("text", "code_inline")
            )
            name = _NOT_IN_ANCHORS.sub("", unicodedata.normalize("NFC", text).strip().lower()).replace(
                " ", "-"
            )
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return found


def code_spans(page: Path) -> set[str]:
    """Return the code spans of a page."""
    return {token.content for token in tokens(page) if token.type == "code_inline"}


def fences(page: Path, language: str) -> Iterator[tuple[str, str]]:
    """Yield (words after the language, text) of each code block in a language."""
    for token in tokens(page):
        if token.type == "fence" and token.info.split()[:1] == [language]:
            yield " ".join(token.info.split()[1:]), token.content
