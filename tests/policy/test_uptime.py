"""By the machine's uptime an admission that came to nothing is told from a job on its way within a second.

slurm-gpuctld stamps its looks with it, and job_submit.lua its decisions: no whole seconds, no set clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptDecision

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description, snapshot

START = 1_000_000
SHARE = RuleModel("share", "user", limits={"gpus_total": 6000})


@dataclass
class Site:
    """A controller that has been up for a while, its script, and slurm-gpuctld's file."""

    directory: Path
    lua: str = "5.4"
    up: float = 99_990.0
    step: float = 0.0
    """By which somebody set the wall clock."""
    generation: int = 0
    script: PolicyScript = field(init=False)

    def __post_init__(self) -> None:
        table = compiled([SHARE], str(self.directory / "decisions.log"), snapshot=str(self.file))
        self.script = PolicyScript(
            build_bundle(table), lua=self.lua, writes=True, now=self.second, uptime=lambda: self.up
        )

    @property
    def file(self) -> Path:
        return self.directory / "snapshot.txt"

    def second(self) -> int:
        return int(START + self.up + self.step)

    def take(self, *gpus: int, tokens: tuple[str, ...] = (), took: float = 0.05, boot: str = "boot") -> None:
        """What slurm-gpuctld writes of a look that began now: jobs with so many GPUs pend."""
        self.generation += 1
        jobs = [(Request(uid=1001, account="vision", per_job=n), False) for n in gpus]
        text = snapshot(self.generation, self.second(), [SHARE], jobs, tokens)
        head, groups, rest = text.split("\n", 2)
        self.file.write_text(f"{head}\n{groups}\nlooked {self.up:.2f} {took:.2f} {boot}\n{rest}")

    def submit(self, gpus: int = 1) -> ScriptDecision:
        return self.script.submit(description(Request(uid=1001, account="vision", per_job=gpus)), PARTITIONS)

    def after(self, seconds: float) -> bool:
        """Whether there is room once slurm-gpuctld has looked after so many seconds, and seen no job."""
        self.up += seconds
        self.take()
        self.up += 0.1
        return self.submit(6).accepted


@pytest.fixture(params=LUA_VERSIONS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    site = Site(tmp_path, lua=request.param)
    site.take()
    return site


def token(verdict: ScriptDecision) -> str:
    return str(verdict.desc["admin_comment"]).split()[1].removeprefix("t=")


@pytest.mark.parametrize(("seconds", "settled"), [(0.74, False), (0.76, True)])
def test_what_came_to_nothing_is_forgotten_by_a_look_that_would_have_shown_it(
    site: Site, seconds: float, settled: bool
) -> None:
    site.up += 0.99  # where a second ends and the next begins does not matter
    for _ in range(6):
        assert site.submit().accepted
    assert not site.submit().accepted
    assert site.after(seconds) is settled


def test_a_digit_more_of_uptime_is_read(tmp_path: Path) -> None:
    site = Site(tmp_path, up=99_999.5)
    site.take()
    assert site.submit(6).accepted
    assert not site.after(0.6)  # 100,000.1
    assert site.after(0.2)


def test_while_slurmctld_is_slow_to_answer_it_may_be_slow_to_put_jobs_in(site: Site) -> None:
    assert site.submit(6).accepted
    site.up += 1.5
    site.take(took=1.0)
    assert not site.submit().accepted
    site.up += 0.3
    site.take(took=1.0)
    assert site.submit().accepted


def test_a_job_that_showed_late_gives_the_others_more_time(site: Site) -> None:
    first, second = site.submit(1), site.submit(5)
    site.up += 0.6
    site.take()
    assert not site.submit().accepted
    site.up += 0.06
    site.take(1, tokens=(f"{token(first)} {site.second()}",))
    assert not site.submit().accepted
    for _ in range(2):
        site.up += 0.25
        site.take(1)
        assert not site.submit().accepted  # the first one was not there after 0.6 s
    site.take(1, 5, tokens=(f"{token(second)} {site.second()}",))
    site.up += 5
    site.take(1, 5)
    assert not site.submit().accepted


def test_a_clock_that_is_set_forward_makes_nothing_late(site: Site) -> None:
    assert site.submit(6).accepted
    site.step = 100.0
    site.up += 0.3
    site.take()
    assert not site.submit().accepted


@pytest.mark.parametrize("boot", ["another", ""])
def test_uptimes_of_another_host_or_boot_are_not_compared(site: Site, boot: str) -> None:
    assert site.submit(6).accepted
    site.up += 0.95
    site.take(boot=boot)
    assert not site.submit().accepted
    site.up += 1.2
    site.take(boot=boot)
    assert site.submit().accepted  # by whole seconds


def test_a_refusal_says_when_to_try_again(site: Site) -> None:
    assert site.submit(6).accepted
    words = " ".join(" ".join(site.submit(1).messages).split())
    assert "(6 just submitted)" in words
    assert "try again in 2 s;" in words


def test_between_two_looks_at_the_file_a_moment_passes(site: Site) -> None:
    assert site.submit(1).accepted
    site.take(6)
    assert site.submit(1).accepted  # no more than 0.05 s old
    site.up += 0.05
    assert not site.submit(1).accepted
