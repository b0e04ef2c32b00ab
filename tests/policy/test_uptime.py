"""With the uptime of the machine, the script drops admissions without a job within a second.

slurm-gpuctld writes the uptime into snapshots, and job_submit.lua writes it into its decisions, so neither
whole seconds nor clock changes matter.
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
    """A controller, its script, and the snapshot of slurm-gpuctld."""

    directory: Path
    lua: str = "5.4"
    up: float = 99_990.0
    step: float = 0.0
    """Seconds by which the wall clock was changed."""
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

    def write_snapshot(
        self, *gpus: int, tokens: tuple[str, ...] = (), took: float = 0.05, boot: str = "boot"
    ) -> None:
        """Write a snapshot of the current queue, with pending jobs that request these numbers of GPUs."""
        self.generation += 1
        jobs = [(Request(uid=1001, account="vision", per_job=n), False) for n in gpus]
        text = snapshot(self.generation, self.second(), [SHARE], jobs, tokens)
        head, groups, rest = text.split("\n", 2)
        self.file.write_text(f"{head}\n{groups}\nlooked {self.up:.2f} {took:.2f} {boot}\n{rest}")

    def submit(self, gpus: int = 1) -> ScriptDecision:
        return self.script.submit(description(Request(uid=1001, account="vision", per_job=gpus)), PARTITIONS)

    def fits_after(self, seconds: float) -> bool:
        """Let these seconds pass, write a snapshot without jobs, and return whether a job then fits."""
        self.up += seconds
        self.write_snapshot()
        self.up += 0.1
        return self.submit(6).accepted


@pytest.fixture(params=LUA_VERSIONS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    site = Site(tmp_path, lua=request.param)
    site.write_snapshot()
    return site


def token(verdict: ScriptDecision) -> str:
    return str(verdict.desc["admin_comment"]).split()[1].removeprefix("t=")


@pytest.mark.parametrize(("seconds", "dropped"), [(0.74, False), (0.76, True)])
def test_an_admission_is_dropped_by_the_first_snapshot_that_would_show_its_job(
    site: Site, seconds: float, dropped: bool
) -> None:
    site.up += 0.99  # boundaries of whole seconds do not matter
    for _ in range(6):
        assert site.submit().accepted
    assert not site.submit().accepted
    assert site.fits_after(seconds) is dropped


def test_an_uptime_with_six_digits_is_read(tmp_path: Path) -> None:
    site = Site(tmp_path, up=99_999.5)
    site.write_snapshot()
    assert site.submit(6).accepted
    assert not site.fits_after(0.6)  # the uptime is now 100,000.1 s
    assert site.fits_after(0.2)


def test_admissions_count_longer_while_slurmctld_responds_slowly(site: Site) -> None:
    assert site.submit(6).accepted
    site.up += 1.5
    site.write_snapshot(took=1.0)
    assert not site.submit().accepted
    site.up += 0.3
    site.write_snapshot(took=1.0)
    assert site.submit().accepted


def test_admissions_count_longer_after_a_job_appeared_late(site: Site) -> None:
    first, second = site.submit(1), site.submit(5)
    site.up += 0.6
    site.write_snapshot()
    assert not site.submit().accepted
    site.up += 0.06
    site.write_snapshot(1, tokens=(f"{token(first)} {site.second()}",))
    assert not site.submit().accepted
    for _ in range(2):
        site.up += 0.25
        site.write_snapshot(1)
        assert not site.submit().accepted  # the first job was missing after 0.6 s
    site.write_snapshot(1, 5, tokens=(f"{token(second)} {site.second()}",))
    site.up += 5
    site.write_snapshot(1, 5)
    assert not site.submit().accepted


def test_setting_the_clock_forward_drops_no_admission(site: Site) -> None:
    assert site.submit(6).accepted
    site.step = 100.0
    site.up += 0.3
    site.write_snapshot()
    assert not site.submit().accepted


@pytest.mark.parametrize("boot", ["another", ""])
def test_uptimes_of_another_host_or_boot_are_not_compared(site: Site, boot: str) -> None:
    assert site.submit(6).accepted
    site.up += 0.95
    site.write_snapshot(boot=boot)
    assert not site.submit().accepted
    site.up += 1.2
    site.write_snapshot(boot=boot)
    assert site.submit().accepted  # the admission was dropped by whole seconds


def test_a_refusal_states_when_to_try_again(site: Site) -> None:
    assert site.submit(6).accepted
    words = " ".join(" ".join(site.submit(1).messages).split())
    assert "(6 just submitted)" in words
    assert "try again in 2 s;" in words


def test_the_snapshot_file_is_read_at_most_every_50_ms(site: Site) -> None:
    assert site.submit(1).accepted
    site.write_snapshot(6)
    assert site.submit(1).accepted  # the script read the snapshot at most 0.05 s ago
    site.up += 0.05
    assert not site.submit(1).accepted
