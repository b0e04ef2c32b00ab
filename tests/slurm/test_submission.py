"""Test partitions as printed by three versions of Slurm."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_gpu.slurm.submission import Partition, read_licenses, read_partitions
from tests.slurm.recorded import VERSIONS, RecordedSlurm


@pytest.fixture(scope="module", params=list(VERSIONS))
def partitions(request: pytest.FixtureRequest) -> Mapping[str, Partition]:
    return {one.name: one for one in read_partitions(RecordedSlurm(request.param), {})}


def test_jobs_of_one_partition_have_whole_nodes(partitions: Mapping[str, Partition]) -> None:
    """26.05 prints it elsewhere."""
    assert [name for name, one in partitions.items() if one.whole_nodes] == ["whole"]


def test_the_default_is_known_and_hidden_ones_are_there(partitions: Mapping[str, Partition]) -> None:
    assert [name for name, one in partitions.items() if one.is_default] == ["gpu"]
    assert "hidden" in partitions


def test_times(partitions: Mapping[str, Partition]) -> None:
    times = {name: (one.default_time_s, one.max_time_s) for name, one in partitions.items()}
    assert times == dict.fromkeys(partitions, (None, None)) | {
        "gpu": (3600, None),
        "time": (600, 1800),
        "some": (None, 2 * 86400),
    }


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("allow_groups", {"group": {"undergrad"}, "some": {"alice", "undergrad"}}),
        ("allow_accounts", {"account": {"nlp"}}),
        ("deny_accounts", {"no-account": {"vision", "x"}}),
        ("allow_qos", {"qos": {"high", "other"}}),
        ("deny_qos", {"no-qos": {"normal"}}),
    ],
)
def test_restrictions_of_partitions(
    partitions: Mapping[str, Partition], field: str, found: Mapping[str, set[str]]
) -> None:
    limits = {name: getattr(one, field) for name, one in partitions.items()}
    assert {name: names for name, names in limits.items() if names is not None} == found


@pytest.mark.parametrize(
    ("field", "usual", "found"),
    [
        ("max_nodes", None, {"few-nodes": 2}),
        ("max_cpus_per_node", None, {"cpus": 8}),
        ("max_memory_per_node_mib", None, {"memory": 8192}),
        ("root_only", False, {"admin": True}),
        ("needs_reservation", False, {"reserved": True}),
        ("state", "UP", {"down": "DOWN", "drain": "DRAIN", "inactive": "INACTIVE"}),
    ],
)
def test_settings_of_partitions(
    partitions: Mapping[str, Partition], field: str, usual: object, found: Mapping[str, object]
) -> None:
    values = {name: getattr(one, field) for name, one in partitions.items()}
    assert {name: value for name, value in values.items() if value != usual} == found
    assert {name for name, one in partitions.items() if one.min_nodes > 1} == {"many-nodes"}


@pytest.mark.parametrize("gap", [" ", "\n    "])
def test_licences_are_counted_whether_free_or_not(gap: str) -> None:
    text = (
        f"LicenseName=matlab{gap}Total=10 Used=4 Free=6 Reserved=0 Remote=no\n"
        f"LicenseName=ansys@flex{gap}Total=4 Used=0 Free=4 Reserved=0 Remote=yes\n"
    )
    assert read_licenses(lambda *_: text, {}) == {"matlab": 10, "ansys@flex": 4}
    assert read_licenses(lambda *_: "No licenses configured in Slurm.\n", {}) == {}
