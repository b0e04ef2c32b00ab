"""What a partition keeps out, as Slurm 22.05 refused it or let it wait."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_gpu.policy.partitionlimits import Barred, barred
from slurm_gpu.policy.script import INFINITE, NO_VAL
from slurm_gpu.policy.submitter import Submitter, read_submitter
from slurm_gpu.slurm.submission import Partition

from .limitstore import MemoryStore, account, qos


def partition(name: str, **limits: Any) -> Partition:
    limits = {key: frozenset(value) if isinstance(value, set) else value for key, value in limits.items()}
    return Partition(
        **{"is_default": False, "default_time_s": None, "max_time_s": None, **limits, "name": name}
    )


GPU = partition("gpu")
SHORT = partition("short", max_time_s=1800)
GROUP = partition("grp", allow_groups={"undergrad"})
ALICE = Submitter(groups={"alice"}, account="vision", ancestors=["root"], qos="normal")
BEYOND = "partition short gives 30m at most (--time)"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"allow_accounts": {"nlp"}}, "partition p is for account nlp only, not for vision"),
        ({"deny_accounts": {"vision"}}, "partition p is not for account vision"),
        ({"allow_qos": {"high"}}, "partition p is for QOS high only, not for normal"),
        ({"deny_qos": {"normal"}}, "partition p is not for QOS normal"),
        ({"max_time_s": 1800}, "partition p gives 30m at most (--time)"),
    ],
)
def test_what_slurm_lets_wait_or_refuses_as_enforced(limits: dict[str, Any], reason: str) -> None:
    one = [partition("p", **limits)]
    assert barred(one, 60, ALICE, "NO") == Barred(waits=(reason,))
    assert barred(one, 60, ALICE, "ANY") == barred(one, 60, ALICE, "ALL") == Barred(refused=(reason,))


def test_of_several_partitions_one_or_each_has_to_be_right() -> None:
    assert barred([SHORT, GPU], 60, ALICE, "NO") == Barred()
    assert barred([SHORT, GPU], 60, ALICE, "ANY") == Barred()
    assert barred([SHORT, GPU], 60, ALICE, "ALL") == Barred(refused=(BEYOND,))


def test_groups_are_asked_first_and_always() -> None:
    reason = "partition grp is for members of UNIX group undergrad only"
    for enforced in ("NO", "ANY", "ALL"):
        assert barred([GROUP], 60, ALICE, enforced) == Barred(refused=(reason,))
        assert barred([GROUP], 60, Submitter(groups={"undergrad", "bob"}), enforced) == Barred()
    assert barred([GROUP, GPU], 60, ALICE, "NO") == Barred()
    assert barred([GROUP, GPU], 60, ALICE, "ANY") == Barred(refused=(reason,))
    assert barred([GROUP, SHORT], 60, ALICE, "NO") == Barred(waits=(reason, BEYOND))


@pytest.mark.parametrize(("minutes", "fits"), [(30, True), (31, False), (NO_VAL, True), (INFINITE, False)])
def test_time(minutes: int, fits: bool) -> None:
    assert (barred([SHORT], minutes, ALICE, "ALL") == Barred()) == fits


def test_a_qos_may_go_beyond_the_time_of_partitions() -> None:
    over = Submitter(qos="long", qos_over_time={"long"})
    assert barred([SHORT], 60, over, "ALL") == Barred()


def test_what_is_not_known_is_not_judged() -> None:
    closed = partition("p", allow_groups={"x"}, allow_accounts={"x"}, allow_qos={"x"})
    assert barred([closed], None, Submitter(), "ALL") == Barred()
    # Whether an account is let in with the one above depends on Slurm's version.
    below = Submitter(account="lab2", ancestors=["vision", "root"])
    assert barred([partition("p", allow_accounts={"vision"})], None, below, "ALL") == Barred()


def test_slurmdbd_is_asked_for_accounts_above_and_for_qos_without_limit() -> None:
    store = MemoryStore(
        (account("root", parent=""), account("vision"), account("lab2", parent="vision")),
        (qos("normal"), qos("long", Flags_PartitionTimeLimit=1)),
    )
    limits = [partition("p", allow_accounts={"vision"}, max_time_s=60)]
    found = read_submitter(store, "c", "root", "Lab2", "LONG", limits)
    assert (found.account, found.ancestors, found.qos) == ("lab2", ["vision", "root"], "long")
    assert (found.qos_over_time, found.groups) == ({"long"}, None)
    away = read_submitter(None, "c", "no such user", "lab2", None, limits)
    assert (away.ancestors, away.qos_over_time, away.groups) == (None, (), None)
