"""Limits reach whoever looks at them, told in the background by the one in charge; or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from slurm_gpu.controller.duty import InUse, QueueView
from slurm_gpu.controller.reporting.quota_reporter import EVERY_S, QuotaReporter
from slurm_gpu.errors import DatabaseError, NotFoundError
from slurm_gpu.policy.lua.installed import PolicyInForce
from slurm_gpu.slurm.submission import UserAssociations
from slurm_gpu.wire.answers.quota import Quota
from tests.controller.fakes import Clock
from tests.controller.test_quota import ALICE, GRADS, SNAPSHOT, rule

POLICY = PolicyInForce((GRADS,), (rule({"gpus_total": 64_000}),), "ab")
UIDS = {"alice": 1001, "bob": 1002}


class Site:
    """slurm-gpudbd as a list of who looks, and what it was told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.wanted: list[str] = []
        self.told: dict[str, Quota] = {}
        self.messages = 0
        self.trouble: Exception | None = None
        self.places_asked: list[str] = []
        self.places = ALICE
        self.waiting: list[Callable[[], None]] = []
        self.teller = QuotaReporter(self.exchange, self.submit, self.places_of, self.clock, UIDS.__getitem__)

    def exchange(self, work: Callable[[Any], None]) -> None:
        if self.trouble is not None:
            raise self.trouble
        work(self)

    def submit(self, task: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        try:
            future.set_result(task())
        except DatabaseError as error:
            future.set_exception(error)
        return future

    def places_of(self, user: str) -> UserAssociations:
        self.places_asked.append(user)
        return self.places

    def quotas_wanted(self) -> Sequence[str]:
        return self.wanted

    def tell_quotas(self, quotas: Sequence[Quota]) -> None:
        self.messages += 1
        self.told |= {quota.user: quota for quota in quotas}

    def turn(self, policy: PolicyInForce | None = POLICY, *, in_charge: bool = True) -> None:
        in_use = None if policy is None else InUse(policy, SNAPSHOT, dict)
        self.teller.run(QueueView(answered=in_use is not None, in_charge=in_charge, in_use=in_use))
        self.clock.advance(EVERY_S)


def test_who_looks_is_told_their_limits_and_what_is_used_and_nobody_else() -> None:
    site = Site()
    site.turn()
    assert site.told == {}
    site.wanted = ["alice"]
    site.turn()
    quota = site.told.pop("alice")
    assert (quota.as_of_s, quota.why, site.told) == (SNAPSHOT.as_of_s, None, {})
    assert quota.limits is not None
    (limit,) = quota.limits
    assert (limit["on"], limit["unit"]) == ("GPUs running + pending", "GPUs")
    assert (limit["used"], limit["limit"], limit["left"]) == (32.0, 64.0, 32.0)


def test_who_is_known_to_nobody_and_a_host_without_a_policy_are_said_to_be_so() -> None:
    site = Site()
    site.wanted = ["nobody", "alice"]
    site.turn()
    assert (site.told["nobody"].limits, site.told["alice"].why) == (None, None)
    assert "user nobody does not exist on slurm-gpuctld's host" in str(site.told["nobody"].why)
    site.turn(PolicyInForce())
    assert "slurm-gpu policy apply" in str(site.told["alice"].why)
    assert site.told["alice"].limits is None


@pytest.mark.parametrize("how", ["not in charge", "slurmctld away", "too soon"])
def test_nobody_is_asked_out_of_turn(how: str) -> None:
    site = Site()
    site.wanted = ["alice"]
    if how == "too soon":
        site.turn()
        site.told.clear()
        site.clock.advance(-1)
    site.turn(None if how == "slurmctld away" else POLICY, in_charge=how != "not in charge")
    assert site.told == {}


def test_many_who_look_are_told_in_several_messages() -> None:
    site = Site()
    site.wanted = [f"user{number}" for number in range(45)]
    site.turn()
    assert (len(site.told), site.messages) == (45, 3)


def test_accounts_are_asked_of_slurm_once_in_ten_minutes_but_again_while_it_is_silent() -> None:
    site = Site()
    site.wanted, site.places = ["alice"], UserAssociations(from_slurmdbd=False)
    site.turn()
    site.places = ALICE
    site.turn()
    site.turn()
    assert site.places_asked == ["alice"] * 2
    site.clock.advance(600)
    site.turn()
    assert site.places_asked == ["alice"] * 3


@pytest.mark.parametrize(
    "trouble", [DatabaseError("nobody is there"), NotFoundError("slurm-gpudbd has no GET /v1/quota")]
)
def test_trouble_is_told_once_and_that_it_is_over(trouble: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    site = Site()
    site.wanted, site.trouble = ["alice"], trouble
    for _ in range(3):
        site.turn()
    assert [record.message.count(str(trouble)) for record in caplog.records] == [1]
    site.trouble = None
    site.turn()
    site.turn()
    assert "sent to slurm-gpudbd again" in caplog.records[-1].message
    assert "alice" in site.told
