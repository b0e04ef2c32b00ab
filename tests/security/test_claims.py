"""Each claim of docs/security.md names a test that is there."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, ROOT

_PAGE = (DOCS / "security.md").read_text()
CLAIMS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", _PAGE)


@pytest.mark.parametrize(("file", "name"), CLAIMS, ids=[name for _, name in CLAIMS])
def test_the_test_is_there(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_each_threat_has_its_tests() -> None:
    for row in re.findall(r"^\|.*\|$", _PAGE, re.MULTILINE):
        if "| cannot |" in row or "---" in row:
            continue
        section = _PAGE[: _PAGE.index(row)].rpartition("\n## ")[2].partition("\n")[0]
        if section in (
            "A user on a node",
            "A network attacker",
            "Malicious text",
            "A node that lies",
            "Pages",
        ):
            assert "`tests/" in row, row
