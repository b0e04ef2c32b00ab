"""packaging/audit never reports a package as safe if it could not look up the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

_FINE: dict[str, Any] = {"name": "psutil", "version": "1", "vulns": []}
_BAD: dict[str, Any] = {"name": "psutil", "version": "1", "vulns": [{"id": "PYSEC-2026-1"}]}
_SKIPPED: dict[str, Any] = {"name": "psutil", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("of_pypi", "of_osv", "status", "said"),
    [
        (_FINE, None, 0, "1 of 1 packages checked, 0 with"),
        (_SKIPPED, _FINE, 0, "1 of 1 packages checked, 0 with"),
        (_FINE, _BAD, 1, "psutil: PYSEC-2026-1"),
        (_SKIPPED, None, 3, "NOT checked: psutil"),
        (None, None, 3, "osv could not be queried: no route"),
    ],
)
def test_output_and_exit_status_of_the_audit(
    tmp_path: Path, of_pypi: Any, of_osv: Any, status: int, said: str
) -> None:
    for service, answer in (("pypi", of_pypi), ("osv", of_osv)):
        if answer is not None:
            (tmp_path / service).write_text(json.dumps({"dependencies": [answer]}))
    program = tmp_path / "pip-audit"
    program.write_text(
        f"#!/bin/sh\nfor word; do case $word in pypi|osv) service=$word;; esac; done\n"
        f'cat "{tmp_path}/$service" 2>/dev/null || {{ echo no route >&2; exit 1; }}\n'
    )
    program.chmod(0o755)
    lock = tmp_path / "node.txt"
    lock.write_text("# made\npsutil==1 \\\n    --hash=sha256:00\n")
    done = subprocess.run(
        [sys.executable, ROOT / "packaging" / "audit", lock],
        capture_output=True,
        text=True,
        env={**os.environ, "PIP_AUDIT": str(program)},
    )
    assert (done.returncode, said in done.stdout) == (status, True), done.stdout + done.stderr
