"""Every link in the documentation has a target in the checkout."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from .pages import DOCS, PAGES, ROOT, anchors, links

# Pages that docs/hooks.py adds from files outside docs/.
_ELSEWHERE = {"changelog.md", "contributing.md", "lab.md"}


def _broken(page: Path) -> list[str]:
    found = []
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
        no_heading = parts.fragment and target.suffix == ".md" and parts.fragment not in anchors(target)
        if not target.is_relative_to(ROOT) or not target.exists() or no_heading:
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert _broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `head`, of 2\n[a](#a-head-of-2) [b](#b) [c](c.md) [d](https://d.example)\n")
    assert anchors(page) == {"a-head-of-2"}
    assert [link for link in links(page) if link.startswith("#")] == ["#a-head-of-2", "#b"]
    assert "#b" in _broken(page)


def test_the_site_has_each_page_once() -> None:
    class Loader(yaml.SafeLoader):
        """A YAML loader that ignores the tags of mkdocs."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    listed = re.findall(r"[\w-]+\.md", str(site["nav"]))
    assert sorted(listed) == sorted({page.name for page in DOCS.glob("*.md")} | _ELSEWHERE)


_LIST = re.compile(r"\s{0,3}([-*]|\d+\.) ")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_lists_begin_behind_an_empty_line(page: Path) -> None:
    """Without an empty line, the site's Markdown adds a list to the paragraph before it."""
    in_code, before, found = False, "", []
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and _LIST.match(line) and before and not (_LIST.match(before) or before[0] == " "):
            found.append(line)
        before = line
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_marks_of_a_merge(page: Path) -> None:
    marks = [line for line in page.read_text().splitlines() if re.match(r"<{7} |={7}$|>{7} ", line)]
    assert marks == []


def test_the_readme_needs_two_commands() -> None:
    (block,) = re.findall(r"## Try it.*?```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [line.split("#")[0].strip() for line in block.splitlines()] == ["make demo", "make test"]
