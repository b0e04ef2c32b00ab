"""docs/upgrading.md is about the newest release in the changelog."""

from __future__ import annotations

import re

from slurm_gpu.database.storage.engine import head_revision

from .pages import DOCS


def test_it_names_the_schema_of_the_newest_release() -> None:
    newest = re.search(r"^## \[(\d+\.\d+)\.", (DOCS.parent / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert f"\n{newest[1]} has the schema {head_revision()}," in (DOCS / "upgrading.md").read_text()
