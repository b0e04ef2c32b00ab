"""All bundled dependencies are pinned with hashes of their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

_LOCKS = sorted((ROOT / "packaging" / "requirements").glob("*.txt"))


def _entries(lock: Path) -> list[str]:
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def test_there_are_locks() -> None:
    assert {"common", "node", "client", "db"} <= {lock.stem for lock in _LOCKS}


@pytest.mark.parametrize("lock", _LOCKS, ids=lambda lock: lock.stem)
def test_everything_that_is_carried_is_pinned_with_hashes(lock: Path) -> None:
    entries = _entries(lock)
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[^\s;]+(\s*;[^\\]*?)?\s+--hash=sha256:[0-9a-f]{64}", entry), entry[:80]
