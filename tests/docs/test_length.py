"""Pages stay short enough to be read."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("**/*.md"))


def words(*paths: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


@pytest.mark.parametrize(("name", "most"), [("README.md", 700), ("docs/user-guide.md", 1_200)])
def test_the_first_pages_are_short(name: str, most: int) -> None:
    assert words(ROOT / name) <= most


def test_no_page_and_not_all_together_are_too_long() -> None:
    assert max(map(words, PAGES)) <= 5_000
    assert words(*PAGES) <= 45_000
