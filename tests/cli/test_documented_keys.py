"""docs/commands.md names every JSON key, every column and every check."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.cli.doctor.checks.every import CHECKS
from slurm_gpu.cli.runs.jobs import CSV_COLUMNS
from tests.cli.conftest import CommandLine, make_record, make_run
from tests.monitor.clusters import cluster, holds, job, node, waiting

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_WORDS = set(
    " ".join(re.findall(r"`([^`]*)`", (_DOCS / "commands.md").read_text() + (_DOCS / "api.md").read_text()))
    .replace("{", " ")
    .replace("}", " ")
    .replace('"', " ")
    .replace(":", " ")
    .replace(",", " ")
    .split()
)
# Objects whose keys are names (GPU types, TRES) or are documented elsewhere (records).
_OWN_NAMES = {"gpus", "gpus_allocated", "tres_requested", "tres_allocated", "devices"}


def _keys(value: Any, under: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _keys(item, under)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            if not (key in _OWN_NAMES and isinstance(item, dict)) and key != "devices":
                yield from _keys(item, key)


@pytest.mark.parametrize("argv", [("jobs",), ("job", "17"), ("nodes",), ("top",), ("doctor",)])
def test_every_key_is_documented(slurm_gpu: CommandLine, argv: tuple[str, ...]):
    slurm_gpu.database.runs = [make_run(devices=(make_record("GPU-1"),))]
    slurm_gpu.database.cluster_state = cluster([node("n1", holds(7, 0))], [job(7), waiting(8)])
    slurm_gpu(*argv, "--json")
    assert set(_keys(json.loads(slurm_gpu.out))) <= _WORDS


@pytest.mark.parametrize("argv", [("jobs",), ("nodes",)])
def test_every_column_is_documented(slurm_gpu: CommandLine, argv: tuple[str, ...]):
    slurm_gpu.database.runs = [make_run()]
    slurm_gpu(*argv, "--csv")
    assert set(slurm_gpu.out.splitlines()[0].split(",")) <= _WORDS


def test_the_columns_of_jobs_are_documented_in_their_order():
    assert " ".join(CSV_COLUMNS) in " ".join((_DOCS / "commands.md").read_text().split())


def test_every_check_is_documented():
    text = (_DOCS / "commands.md").read_text()
    assert all(f"`{check.name}`" in text for check in CHECKS)
