"""The limits of users who view them, or the reason for missing limits, are sent in the background."""

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
    """A slurm-gpudbd that lists the users who view their limits, and stores what it receives."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.wanted: list[str] = []
        self.reported: dict[str, Quota] = {}
        self.messages = 0
        self.error: Exception | None = None
        self.places_asked: list[str] = []
        self.places = ALICE
        self.waiting: list[Callable[[], None]] = []
        self.reporter = QuotaReporter(
            self.exchange, self.submit, self.places_of, self.clock, UIDS.__getitem__
        )

    def exchange(self, work: Callable[[Any], None]) -> None:
        if self.error is not None:
            raise self.error
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

    def send_quotas(self, quotas: Sequence[Quota]) -> None:
        self.messages += 1
        self.reported |= {quota.user: quota for quota in quotas}

    def run_cycle(self, policy: PolicyInForce | None = POLICY, *, in_charge: bool = True) -> None:
        in_use = None if policy is None else InUse(policy, SNAPSHOT, dict)
        self.reporter.run(QueueView(answered=in_use is not None, in_charge=in_charge, in_use=in_use))
        self.clock.advance(EVERY_S)


def test_limits_and_use_are_sent_for_viewing_users_only() -> None:
    site = Site()
    site.run_cycle()
    assert site.reported == {}
    site.wanted = ["alice"]
    site.run_cycle()
    quota = site.reported.pop("alice")
    assert (quota.as_of_s, quota.why, site.reported) == (SNAPSHOT.as_of_s, None, {})
    assert quota.limits is not None
    (limit,) = quota.limits
    assert (limit["on"], limit["unit"]) == ("GPUs running + pending", "GPUs")
    assert (limit["used"], limit["limit"], limit["left"]) == (32.0, 64.0, 32.0)


def test_an_unknown_user_and_a_missing_policy_are_reported() -> None:
    site = Site()
    site.wanted = ["mallory", "alice"]
    site.run_cycle()
    assert (site.reported["mallory"].limits, site.reported["alice"].why) == (None, None)
    assert "user mallory does not exist on slurm-gpuctld's host" in str(site.reported["mallory"].why)
    site.run_cycle(PolicyInForce())
    assert "slurm-gpu policy apply" in str(site.reported["alice"].why)
    assert site.reported["alice"].limits is None


@pytest.mark.parametrize("how", ["not in charge", "slurmctld down", "too soon"])
def test_no_poll_comes_before_its_time(how: str) -> None:
    site = Site()
    site.wanted = ["alice"]
    if how == "too soon":
        site.run_cycle()
        site.reported.clear()
        site.clock.advance(-1)
    site.run_cycle(None if how == "slurmctld down" else POLICY, in_charge=how != "not in charge")
    assert site.reported == {}


def test_many_viewing_users_take_several_messages() -> None:
    site = Site()
    site.wanted = [f"user{number}" for number in range(45)]
    site.run_cycle()
    assert (len(site.reported), site.messages) == (45, 3)


def test_accounts_are_queried_every_ten_minutes_and_retried_after_failures() -> None:
    site = Site()
    site.wanted, site.places = ["alice"], UserAssociations(from_slurmdbd=False)
    site.run_cycle()
    site.places = ALICE
    site.run_cycle()
    site.run_cycle()
    assert site.places_asked == ["alice"] * 2
    site.clock.advance(600)
    site.run_cycle()
    assert site.places_asked == ["alice"] * 3


@pytest.mark.parametrize(
    "error", [DatabaseError("no answer"), NotFoundError("slurm-gpudbd has no GET /v1/quota")]
)
def test_an_outage_is_logged_once_and_its_end(error: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    site = Site()
    site.wanted, site.error = ["alice"], error
    for _ in range(3):
        site.run_cycle()
    assert [record.message.count(str(error)) for record in caplog.records] == [1]
    site.error = None
    site.run_cycle()
    site.run_cycle()
    assert "sent to slurm-gpudbd again" in caplog.records[-1].message
    assert "alice" in site.reported
