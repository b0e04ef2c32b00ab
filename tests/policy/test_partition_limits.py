"""Limits of partitions keep a job waiting or refuse it, as Slurm 22.05, 24.11 and 26.05 do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_gpu.policy.explain.partition_limits import Obstacles, PartitionRequest, find_obstacles
from slurm_gpu.policy.explain.submitter import Submitter, read_submitter
from slurm_gpu.slurm.job_desc import INFINITE, NO_VAL
from slurm_gpu.slurm.submission import Partition

from .limitstore import MemoryStore, account, qos


def partition(name: str, **limits: Any) -> Partition:
    limits = {key: frozenset(value) if isinstance(value, set) else value for key, value in limits.items()}
    return Partition(
        **{"is_default": False, "default_time_s": None, "max_time_s": None, **limits, "name": name}
    )


HOUR = PartitionRequest(time_limit=60)
GPU = partition("gpu")
SHORT = partition("short", max_time_s=1800)
GROUP = partition("grp", allow_groups={"undergrad"})
ALICE = Submitter(groups={"alice"}, account="vision", ancestors=["root"], qos="normal")
OVER = "partition short allows at most 30m (--time)"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"allow_accounts": {"nlp"}}, "partition p is for account nlp only, not for vision"),
        ({"deny_accounts": {"vision"}}, "partition p is not for account vision"),
        ({"allow_qos": {"high"}}, "partition p is for QOS high only, not for normal"),
        ({"deny_qos": {"normal"}}, "partition p is not for QOS normal"),
        ({"max_time_s": 1800}, "partition p allows at most 30m (--time)"),
    ],
)
def test_enforce_part_limits_decides_between_waiting_and_refusal(limits: dict[str, Any], reason: str) -> None:
    one = [partition("p", **limits)]
    assert find_obstacles(one, HOUR, ALICE, "NO") == Obstacles(waits=(reason,))
    assert (
        find_obstacles(one, HOUR, ALICE, "ANY")
        == find_obstacles(one, HOUR, ALICE, "ALL")
        == Obstacles(refused=(reason,))
    )


def test_one_or_each_of_several_partitions_must_fit() -> None:
    assert find_obstacles([SHORT, GPU], HOUR, ALICE, "NO") == Obstacles()
    assert find_obstacles([SHORT, GPU], HOUR, ALICE, "ANY") == Obstacles()
    assert find_obstacles([SHORT, GPU], HOUR, ALICE, "ALL") == Obstacles(refused=(OVER,))


def test_unix_groups_are_always_checked_first_on_22_05() -> None:
    reason = "partition grp is for members of UNIX group undergrad only"
    for enforced in ("NO", "ANY", "ALL"):
        assert find_obstacles([GROUP], HOUR, ALICE, enforced) == Obstacles(refused=(reason,))
        assert find_obstacles([GROUP], HOUR, Submitter(groups={"undergrad", "bob"}), enforced) == Obstacles()
    assert find_obstacles([GROUP, GPU], HOUR, ALICE, "NO") == Obstacles()
    assert find_obstacles([GROUP, GPU], HOUR, ALICE, "ANY") == Obstacles(refused=(reason,))
    assert find_obstacles([GROUP, SHORT], HOUR, ALICE, "NO") == Obstacles(waits=(reason, OVER))


@pytest.mark.parametrize(("minutes", "fits"), [(30, True), (31, False), (NO_VAL, True), (INFINITE, False)])
def test_time_limits(minutes: int, fits: bool) -> None:
    assert (
        find_obstacles([SHORT], PartitionRequest(time_limit=minutes), ALICE, "ALL") == Obstacles()
    ) == fits


def test_a_qos_can_exceed_the_time_limit_of_partitions() -> None:
    over = Submitter(qos="long", passes={"PartitionTimeLimit"})
    assert find_obstacles([SHORT], HOUR, over, "ALL") == Obstacles()


def test_each_of_several_qos_must_be_allowed_by_the_partition() -> None:
    both = replace(ALICE, qos="high,normal")
    high = partition("p", allow_qos={"high"})
    reason = "partition p is for QOS high only, not for normal"
    assert find_obstacles([high], PartitionRequest(), both, "ALL") == Obstacles(refused=(reason,))
    assert find_obstacles([partition("p", deny_qos={"low"})], PartitionRequest(), both, "ALL") == Obstacles()
    store = MemoryStore((), (qos("normal"), qos("long", Flags_PartitionTimeLimit=1)))
    found = read_submitter(store, "c", "root", None, "long,normal")
    assert found.passes == []


def test_unknown_attributes_are_not_judged() -> None:
    closed = partition("p", allow_groups={"x"}, allow_accounts={"x"}, allow_qos={"x"})
    assert find_obstacles([closed], PartitionRequest(), Submitter(), "ALL") == Obstacles()
    # Slurm's version determines whether allowing an account also allows its children.
    below = Submitter(account="lab2", ancestors=["vision", "root"])
    assert (
        find_obstacles([partition("p", allow_accounts={"vision"})], PartitionRequest(), below, "ALL")
        == Obstacles()
    )


def test_parent_accounts_and_qos_flags_are_read_from_slurmdbd() -> None:
    store = MemoryStore(
        (account("root", parent=""), account("vision"), account("lab2", parent="vision")),
        (qos("normal"), qos("long", Flags_PartitionTimeLimit=1)),
    )
    found = read_submitter(store, "c", "root", "Lab2", "LONG")
    assert (found.account, found.ancestors, found.qos) == ("lab2", ["vision", "root"], "long")
    assert (found.passes, found.groups, found.is_root) == (["PartitionTimeLimit"], None, True)
    unreachable = read_submitter(None, "c", "no such user", "lab2", None)
    assert (unreachable.ancestors, unreachable.passes, unreachable.groups, unreachable.is_root) == (
        None,
        (),
        None,
        False,
    )


def test_unix_groups_are_an_ordinary_limit_from_23_02_on() -> None:
    reason = "partition grp is for members of UNIX group undergrad only"
    for version in ((24, 11), (26, 5)):
        assert find_obstacles([GROUP], HOUR, ALICE, "NO", version) == Obstacles(waits=(reason,))
        assert find_obstacles([GROUP], HOUR, ALICE, "ANY", version) == Obstacles(refused=(reason,))
        assert find_obstacles([GROUP, GPU], HOUR, ALICE, "ANY", version) == Obstacles()
        assert find_obstacles([GROUP, GPU], HOUR, ALICE, "ALL", version) == Obstacles(refused=(reason,))


@pytest.mark.parametrize(
    ("limits", "asked", "reason"),
    [
        ({"max_nodes": 2}, PartitionRequest(least_nodes=3), "partition p allows at most 2 nodes (--nodes)"),
        (
            {"max_nodes": 2},
            PartitionRequest(least_nodes=2, most_nodes=3),
            "partition p allows at most 2 nodes (--nodes)",
        ),
        (
            {"min_nodes": 2},
            PartitionRequest(least_nodes=1),
            "partition p requires at least 2 nodes (--nodes)",
        ),
        (
            {"max_memory_per_node_mib": 8192},
            PartitionRequest(memory_per_node_mib=9216),
            "partition p allows at most 8G per node (--mem)",
        ),
        (
            {"max_memory_per_node_mib": 8192},
            PartitionRequest(memory_per_node_mib=0),
            "partition p allows at most 8G per node (--mem)",
        ),
    ],
)
def test_enforce_part_limits_applies_to_amounts(
    limits: dict[str, Any], asked: PartitionRequest, reason: str
) -> None:
    one = partition("p", **limits)
    assert find_obstacles([one], asked, ALICE, "NO") == Obstacles(waits=(reason,))
    assert find_obstacles([one], asked, ALICE, "ANY") == find_obstacles([one, GPU], asked, ALICE, "ALL")
    assert find_obstacles([one], asked, ALICE, "ANY") == Obstacles(refused=(reason,))
    assert (
        find_obstacles([one, GPU], asked, ALICE, "ANY")
        == find_obstacles([one, GPU], asked, ALICE, "NO")
        == Obstacles()
    )


def test_amounts_within_the_limits_are_accepted() -> None:
    one = partition("p", max_nodes=2, min_nodes=2, max_memory_per_node_mib=8192, max_cpus_per_node=8)
    fits = PartitionRequest(least_nodes=2, most_nodes=2, memory_per_node_mib=8192, cpus_per_task=8)
    for enforced in ("NO", "ANY", "ALL"):
        assert (
            find_obstacles([one], fits, ALICE, enforced)
            == find_obstacles([one], PartitionRequest(), ALICE, enforced)
            == Obstacles()
        )


def test_a_qos_can_exceed_the_node_limits_of_partitions() -> None:
    few, many = partition("p", max_nodes=2), partition("p", min_nodes=2)
    nodes = Submitter(qos="wide", passes={"PartitionMaxNodes", "PartitionMinNodes"})
    assert find_obstacles([few], PartitionRequest(least_nodes=3), nodes, "ALL") == Obstacles()
    assert find_obstacles([many], PartitionRequest(least_nodes=1), nodes, "ALL") == Obstacles()


@pytest.mark.parametrize("limits", [{"root_only": True}, {"needs_reservation": True}])
def test_closed_partitions_refuse_with_any_enforce_part_limits(limits: dict[str, Any]) -> None:
    closed = partition("p", **limits)
    for enforced in ("NO", "ANY", "ALL"):
        assert len(find_obstacles([closed], HOUR, ALICE, enforced, (26, 5)).refused) == 1
        allowed = find_obstacles(
            [closed], PartitionRequest(in_reservation=True), Submitter(is_root=True), enforced
        )
        assert allowed == Obstacles()


def test_a_partition_that_starts_no_job_is_skipped_if_another_can() -> None:
    down, drained, small = (
        partition("p", state="DOWN"),
        partition("p", state="DRAIN"),
        partition("p", max_cpus_per_node=8),
    )
    asked = PartitionRequest(cpus_per_task=9)
    for enforced in ("NO", "ANY", "ALL"):
        for one in (down, drained, small):
            assert find_obstacles([one, GPU], asked, ALICE, enforced) == Obstacles()
        assert find_obstacles([down], asked, ALICE, enforced).waits == (
            "partition p is DOWN until an operator sets it UP",
        )
        assert len(find_obstacles([drained], asked, ALICE, enforced).refused) == 1
        assert find_obstacles([small], asked, ALICE, enforced).refused == (
            "partition p allows at most 8 CPUs per node (--cpus-per-task)",
        )
