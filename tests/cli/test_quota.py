"""Call `slurm-gpu quota` as users do."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.controller.queue.usage import RunningAndPending, Subject, Usage, UsageTotals
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot, render
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import SystemDirectory, resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.installed import read_policy_in_force
from tests.controller.fakes import NOON_S, Clock, Slurm
from tests.docs.pages import DOCS, fences

ME = getpass.getuser()
POLICY = """\
version: 1
mode: enforce
groups:
  vision: {accounts: [vision]}
  nlp: {accounts: [nlp]}
rules:
  - {id: share, for: vision, per: user, why: "Others.", limits: {gpus_total: 6, jobs_total: 5}}
  - {id: size, for: vision, per: job, why: "Others.", limits: {walltime: 2d}, mode: advise}
  - {id: theirs, for: nlp, per: user, why: "Others.", limits: {jobs_total: 1}}
"""
JOB = (
    f"3|N/A|{ME}|{os.getuid()}|vision|normal|gpu|PENDING|2|1|N/A|gres:gpu:2|N/A|cpu=2,node=2,gres/gpu=4|OK"
    "|1795285306|N/A|N/A|||N/A|N/A|N/A|1:00:00|train"
)


INTERACTIVE = (
    JOB.replace("3|N/A", "4|N/A", 1).removesuffix("|N/A|N/A|N/A|1:00:00|train")
    + "slurm-gpu/1 t=ab1x1 k=i r=shells|N/A|N/A|N/A|1:00:00|train"
)


@dataclass
class Command:
    """The command with a policy in force, a queue of one job, and optionally a snapshot."""

    directory: Path
    slurm: Slurm
    run_directory: Path
    capsys: pytest.CaptureFixture[str]
    queue: tuple[str, ...] = (JOB,)

    def __post_init__(self) -> None:
        self.install(POLICY)

    def install(self, text: str) -> None:
        source = parse_yaml(text, "policy.yaml")
        policy = check_policy(source)
        names = resolve_names(policy, source, SystemDirectory())
        bundle = build_bundle(
            compile_policy(policy, names, SiteFacts(n_gpus=16, run_directory=self.run_directory))
        )
        self.script = self.directory / "job_submit.lua"
        self.script.write_text(bundle)

    def run(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        if argv[0] == "sacctmgr":
            return "vision|normal,high\n"
        if argv[-1] == "--version":
            return "slurm-wlm 22.05.8\n"
        if argv[-1] == "partition":
            return ""
        mark = re.search("<[0-9a-f]{16}>", argv[-1])
        if mark is None:
            raise SlurmError(f"unexpected: {argv}")
        return "".join(job.replace("|", mark[0]) + mark[0] + "\n" for job in self.queue)

    def __call__(self, *argv: str) -> int:
        site = CommandSite(
            self.directory / "slurm-gpu.yaml", lambda: self.slurm, wall=lambda: float(NOON_S), run=self.run
        )
        code = main(["quota", *argv], site)
        self.out, self.err = self.capsys.readouterr()
        return code

    def write_snapshot(self, **changes: object) -> None:
        policy = read_policy_in_force(self.script)
        assert policy is not None
        usage = Usage(
            {Subject(ME, "vision"): RunningAndPending(UsageTotals(jobs=1, mgpu=2500))}, {ME: os.getuid()}
        )
        snapshot = Snapshot(1, NOON_S - 5, policy.groups_id, usage)
        path = self.run_directory / "snapshot.txt"
        path.write_text(render(replace(snapshot, **changes)))  # type: ignore[arg-type]


@pytest.fixture
def quota(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    # The script in force names the path of the snapshot, which takes precedence.
    monkeypatch.setenv("SLURM_GPU_RUN_DIR", "/nonexistent")
    return Command(tmp_path, Slurm(Clock(), str(tmp_path / "slurm.conf")), tmp_path, capsys)


def rows(quota: Command) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in quota.out.splitlines()]


def test_the_user_guide_shows_the_output(quota: Command) -> None:
    quota.write_snapshot()
    quota()
    shown = next(text for _, text in fences(DOCS / "user-guide.md", "console") if "slurm-gpu quota" in text)
    printed = [[cell.replace(ME, "alice") for cell in row] for row in rows(quota)]
    assert [re.split(r"\s{2,}", line) for line in shown.splitlines()[1:]] == printed


def test_own_use_is_shown_with_each_limit(quota: Command) -> None:
    quota.write_snapshot()
    assert quota() == 0
    assert rows(quota) == [
        ["rule", "limit on", "for", "used", "limit", "left"],
        ["share", "GPUs running + pending", ME, "2.5", "6", "3.5"],
        ["share", "jobs running + pending", ME, "1", "5", "4"],
        ["size", "each job's time limit", "vision", "–", "2d", "–", "advice only"],
    ]


@pytest.mark.parametrize("snapshot", ["none", "old", "of other groups"])
def test_without_a_valid_snapshot_the_queue_is_counted(quota: Command, snapshot: str) -> None:
    if snapshot == "old":
        quota.write_snapshot(as_of_s=NOON_S - 60)
    elif snapshot == "of other groups":
        quota.write_snapshot(groups_id="f" * 16)
    assert quota("--json") == 0
    answer = json.loads(quota.out)
    assert (answer["user"], answer["from"], answer["as_of_s"]) == (ME, "queue", NOON_S)
    assert answer["limits"][0] == {
        "rule": "share",
        "group": "vision",
        "account": None,
        "per": "user",
        "on": "GPUs running + pending",
        "key": "gpus_total",
        "unit": "GPUs",
        "limit": 6.0,
        "used": 4.0,
        "left": 2.0,
        "carried_over": None,
        "mode": "enforce",
        "over_limit": None,
        "why": "Others.",
        "until_s": None,
    }


def test_rules_for_interactive_jobs_count_only_these(quota: Command) -> None:
    quota.install(
        "version: 1\nmode: enforce\ngroups: {all: {}}\nrules:\n"
        "  - {id: shells, for: all, per: user, kind: interactive, why: W., limits: {jobs_total: 1}}\n"
        "  - {id: scripts, for: all, per: user, kind: batch, why: W., limits: {gpus_total: 8}}\n"
    )
    usage = Usage({Subject(ME, "all"): RunningAndPending(UsageTotals(jobs=2, mgpu=8000))}, {ME: os.getuid()})
    quota.write_snapshot(usage=usage)
    assert quota() == 0
    assert [row[3:6] for row in rows(quota)[1:]] == [["0", "1", "1"], ["4", "8", "4"]]
    quota.queue = (JOB, INTERACTIVE)
    assert quota() == 0
    assert [row[3:6] for row in rows(quota)[1:]] == [["1", "1", "0"], ["4", "8", "4"]]


def test_rules_for_some_jobs_count_only_these(quota: Command) -> None:
    quota.install(
        "version: 1\nmode: enforce\ngroups: {all: {}}\nrules:\n"
        "  - {id: one, for: all, per: user, why: W., jobs: {names: [jupyter*]}, limits: {jobs_total: 1}}\n"
    )
    quota.write_snapshot()
    for name, used in (("train", "0"), ("jupyter-lab", "1")):
        quota.queue = (JOB.replace("|train", f"|{name}"),)
        assert quota() == 0
        assert rows(quota)[1][3:] == [used, "1", str(1 - int(used)), "jobs named jupyter*"]


def test_the_options_of_jobs_over_a_limit_are_shown_with_the_group(quota: Command) -> None:
    quota.install(
        "version: 1\ngroups: {labs: {}}\nrules:\n"
        "  - {id: r, for: labs, per: group, why: W., mode: fit, limits: {gpus_total: 8},\n"
        "     over_limit: {qos: low}}\n"
    )
    quota.write_snapshot()
    assert quota() == 0
    (row,) = rows(quota)[1:]
    assert (row[2], row[-1]) == ("group labs", "jobs over it get --qos=low")


def test_the_hours_of_rules_are_shown(quota: Command) -> None:
    rule = "for: all, per: job, why: W., limits: {gpus: 1}"
    quota.install(
        "version: 1\nmode: enforce\ngroups: {all: {}}\nrules:\n"
        f'  - {{id: day, when: {{days: [mon, sun], hours: "09-24"}}, {rule}}}\n'
        f'  - {{id: night, when: {{days: fri, hours: "22:30-06", at: run}}, {rule}}}\n'
    )
    quota.write_snapshot()
    assert quota() == 0
    assert [row[-1] for row in rows(quota)[1:]] == ["mon,sun 09:00-24:00", "may run fri 22:30-06:00"]


def test_small_gpu_hours_are_not_rounded_to_0(quota: Command) -> None:
    quota.install(
        "version: 1\nmode: enforce\ngroups: {all: {}}\nrules:\n"
        "  - {id: week, for: all, per: user, why: W., limits: {gpu_hours: {week: 500, day: 0.5}}}\n"
    )
    hours = {Subject(ME, "all"): {"gpu_h_day": 0.0514, "gpu_h_week": 410.25}}
    quota.write_snapshot(hours=hours, period_starts=dict.fromkeys(("gpu_h_day", "gpu_h_week"), 1))
    assert quota() == 0
    assert [row[1:] for row in rows(quota)[1:]] == [
        ["GPU-hours today", ME, "0.051", "0.5", "0.449"],
        ["GPU-hours this week", ME, "410.25", "500", "89.75"],
    ]


def test_the_limit_includes_what_was_carried_over(quota: Command) -> None:
    quota.install(
        "version: 1\nmode: enforce\ngroups: {all: {}}\nrules:\n"
        "  - {id: week, for: all, per: user, why: W., limits: {cpu_hours: {week: 500}}, carry_over: true}\n"
    )
    hours = {Subject(ME, "all"): {"cpu_h_week": 410.25, "cpu_h_week_before": 400.5}}
    quota.write_snapshot(hours=hours, period_starts={"cpu_h_week": 9, "cpu_h_week_before": 1})
    assert quota() == 0
    assert rows(quota)[1][1:] == ["CPU-hours this week", ME, "410.25", "599.5", "189.25", "99.5 carried over"]
    assert quota("--json") == 0
    (limit,) = json.loads(quota.out)["limits"]
    assert (limit["limit"], limit["carried_over"], limit["left"]) == (599.5, 99.5, 189.25)


def test_an_unknown_user_is_an_error(quota: Command) -> None:
    assert quota("--user", "no-such-user") == 2
    assert "'no-such-user' is not a user" in quota.err


def test_owners_and_their_loans_are_shown_to_all_users(quota: Command) -> None:
    owners = "owners: {vision: {gpus: 12, lend_in: sg-loans, return_within: 10m}}\nmanages: {qos: [sg-*]}\n"
    quota.install(POLICY.replace("rules:", owners + "rules:"))
    usage = Usage(
        {
            Subject("bob", None): RunningAndPending(UsageTotals(jobs=1, mgpu=8000)),
            Subject("alice", None): RunningAndPending(UsageTotals(jobs=3, mgpu=4000)),
            Subject(None, "own:vision"): RunningAndPending(UsageTotals(jobs=1, mgpu=2000)),
            Subject(None, "loans:sg-loans"): RunningAndPending(UsageTotals(jobs=2, mgpu=9000)),
            Subject(None, "borrowed:sg-loans:vision"): RunningAndPending(UsageTotals(jobs=1, mgpu=1000)),
        },
        {"bob": 1002},
    )
    quota.write_snapshot(usage=usage)
    assert quota() == 0
    assert rows(quota)[-2:] == [
        ["owner", "owns", "uses itself", "lends", "borrows", "back within"],
        ["vision", "12", "2", "6", "1", "10m"],  # on loan: 6 GPUs of vision, and 3 idle GPUs without an owner
    ]
    quota("--json")
    assert json.loads(quota.out)["lending"] == [
        {
            "owner": "vision",
            "owned": 12.0,
            "own": 2.0,
            "lent": 6.0,
            "borrowed": 1.0,
            "return_within_s": 600,
            "qos": "sg-vision",
            "lend_in": "sg-loans",
        }
    ]


def test_each_step_of_a_walltime_by_gpus_is_shown(quota: Command) -> None:
    quota.install(POLICY.replace("{walltime: 2d}", "{walltime: {1: 7d, 8: 2d}}"))
    quota()
    assert "7d from 1 GPU, 2d from 8 GPUs" in quota.out


def test_without_a_policy_in_force_users_get_no_instructions_of_operators(quota: Command) -> None:
    reason = f"the policy is not known on this host, because {quota.script}"
    quota.script.unlink()
    assert quota() == 3
    assert quota.err == f"slurm-gpu: {reason} does not exist\n"
    quota.script.write_text("function slurm_job_submit() return slurm.SUCCESS end\n")
    assert quota() == 3
    assert quota.err == f"slurm-gpu: {reason} was not written by slurm-gpu\n"


def test_without_a_policy_in_force_the_web_page_is_named(quota: Command) -> None:
    quota.script.unlink()
    (quota.directory / "slurm-gpu.yaml").write_text("cluster: lab\nweb: https://gpu.example.edu\n")
    assert quota() == 3
    assert "; see My limits on https://gpu.example.edu (sign in with slurm-gpu web)\n" in quota.err
