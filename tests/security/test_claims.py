"""Each claim of docs/security.md names an existing test."""

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
    claims = re.findall(r"^- .*$", _PAGE, re.MULTILINE)
    assert len(claims) > 60
    assert [claim for claim in claims if "`tests/" not in claim] == []
