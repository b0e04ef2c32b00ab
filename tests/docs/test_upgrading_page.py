"""docs/upgrading.md is about this release."""

from __future__ import annotations

from slurm_gpu import __version__
from slurm_gpu.database.storage.engine import head_revision

from .pages import DOCS


def test_it_names_the_schema_of_this_release() -> None:
    release = __version__.rpartition(".")[0]
    assert f"\n{release} has the schema {head_revision()}," in (DOCS / "upgrading.md").read_text()
