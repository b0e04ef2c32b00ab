"""Unknown fields of newer nodes are logged once; over a limit, the log says that there are more."""

import pytest

from slurm_gpu.database.ingest import unknown_fields as unknown
from slurm_gpu.database.ingest.unknown_fields import UnknownLog


def test_over_the_limit_the_log_notes_that_others_are_not_listed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unknown, "_MAX_LOGGED", 2)
    unknown_log = UnknownLog()
    for name in ("a", "a", "b", "c", "d"):
        unknown_log.warn("n1", "9.0", {"records": [name]})
    named, also_named, full = caplog.messages
    assert ("'a' of records" in named, "'b' of records" in also_named) == (True, True)
    assert full == "nodes send more than 2 unknown names; further names are not logged"
