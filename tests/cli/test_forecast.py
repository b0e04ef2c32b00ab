"""`slurm-gpu forecast` prints a forecast for a pending job or an sbatch command, or why there is none."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.controller.queue.usage import RunningAndPending, Subject, Usage, UsageTotals
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot, render
from slurm_gpu.errors import SlurmError, UsageError
from slurm_gpu.policy.explain.gpu_options import requested_gpus
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import SystemDirectory, resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.installed import read_policy_in_force
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.wire.answers.codec import from_json
from slurm_gpu.wire.answers.forecast import Forecast, ForecastAccuracy, ForecastRecord, Reason
from tests.cli.conftest import CommandLine
from tests.slurm.recorded import NOW_S, recorded_client

FORECAST = Forecast(
    id="17",
    full=True,
    at_s=NOW_S,
    lower_s=1264.0,
    median_s=5040.0,
    upper_s=18_720.0,
    source="learned",
    reasons=[Reason(what="time limit", factor=2.72), Reason(what="the account", factor=0.4)],
    created_s=NOW_S - 5 * 3600,
    samples=14_203,
    since_s=NOW_S - 60 * 86400,
    with_gpus=True,
    judged=ForecastAccuracy(kinds=150, within_2x=0.44, within_3x=0.64),
    past=ForecastRecord(n=200, correct=162, since_s=NOW_S - 9),
)


def answering(slurm_gpu: CommandLine, answer_: Forecast | str | UsageError) -> list[Any]:
    """Set the answer of slurm-gpudbd, and return a list of the requests that it receives."""
    asked: list[Any] = []

    def answer(question: Any) -> Forecast | str:
        asked.append(question)
        if isinstance(answer_, UsageError):
            raise answer_
        return answer_

    slurm_gpu.database.forecast = answer  # type: ignore[attr-defined]
    slurm_gpu.database.forecast_asked = lambda **given: answer(given)  # type: ignore[attr-defined]
    return asked


def test_the_interval_its_reasons_and_its_accuracy_are_printed(slurm_gpu: CommandLine):
    asked = answering(slurm_gpu, FORECAST)
    assert slurm_gpu("forecast", "17") == 0
    when, why, longer, shorter, accuracy, past, judged, source = slurm_gpu.out.splitlines()
    assert asked == ["17"]
    assert when.startswith("job 17 will probably start in 21m04s to 5h12m (")
    assert (why, accuracy) == ("why", "how sure")
    assert longer == "  2.7 times longer than usual because of time limit"
    assert shorter == "  2.5 times shorter than usual because of the account"
    assert (
        past
        == "  of the last 200 forecasts on this cluster, 81% were right: the job started in the predicted "
        "interval"
    )
    assert "jobs with GPUs" in judged
    assert "44%" in judged
    assert source.startswith(
        "  based on a model trained 5h00m ago from 14203 observations of waiting jobs since "
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lower_s": 1.0, "median_s": 8.0, "upper_s": 40.0}, "start within a minute\n"),
        ({"lower_s": 20.0, "median_s": 90.0, "upper_s": 600.0}, "start within 10m00s (by "),
        (
            {"past": ForecastRecord(n=3, correct=2, since_s=1)},
            "right so far: 2 of 3 forecasts (the job started in the interval)",
        ),
        ({"past": ForecastRecord(n=0, correct=0, since_s=None)}, "no forecast on this cluster is old enough"),
        ({"judged": None}, "not validated, because too few jobs with GPUs waited recently"),
        ({"judged": None, "with_gpus": False}, "too few jobs without GPUs"),
        ({"source": "tables"}, "based on tables made 5h00m ago"),
    ],
)
def test_other_forms_of_the_answer(slurm_gpu: CommandLine, changes: dict[str, Any], text: str):
    answering(slurm_gpu, dataclasses.replace(FORECAST, **changes))
    assert slurm_gpu("forecast", "17") == 0
    assert text in slurm_gpu.out


def test_reasons_of_a_forecast_that_was_not_validated_are_not_printed(slurm_gpu: CommandLine):
    answering(slurm_gpu, dataclasses.replace(FORECAST, judged=None))
    assert slurm_gpu("forecast", "17") == 0
    assert "than usual" not in slurm_gpu.out


def test_without_reasons_no_heading_is_printed(slurm_gpu: CommandLine):
    answering(slurm_gpu, dataclasses.replace(FORECAST, reasons=()))
    slurm_gpu("forecast", "17")
    assert "why" not in slurm_gpu.out


def test_a_start_on_another_day_names_the_day(slurm_gpu: CommandLine):
    answering(slurm_gpu, dataclasses.replace(FORECAST, median_s=2 * 86400.0, upper_s=30 * 86400.0))
    slurm_gpu("forecast", "17")
    first = slurm_gpu.out.splitlines()[0]
    assert any(f"around {day} " in first for day in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"))
    assert " to 20" in first


def test_an_old_model_prints_a_remark(slurm_gpu: CommandLine):
    answering(slurm_gpu, dataclasses.replace(FORECAST, created_s=NOW_S - 9 * 86400))
    slurm_gpu("forecast", "17")
    assert "note: the model is 9d00h old, so the forecast may be inaccurate\n" in slurm_gpu.err


def test_json_has_the_whole_forecast(slurm_gpu: CommandLine):
    answering(slurm_gpu, FORECAST)
    assert slurm_gpu("forecast", "--json", "17") == 0
    assert from_json(Forecast, json.loads(slurm_gpu.out)["forecast"]) == FORECAST


def test_without_a_forecast_the_reason_is_printed(slurm_gpu: CommandLine):
    answering(slurm_gpu, "nothing has been learned yet")
    assert slurm_gpu("forecast", "17") == 1
    assert slurm_gpu.out == "no forecast: nothing has been learned yet\n"
    assert slurm_gpu("forecast", "--json", "17") == 1
    assert json.loads(slurm_gpu.out) == {"forecast": None, "why": "nothing has been learned yet"}


def test_a_job_that_is_not_pending_is_an_error(slurm_gpu: CommandLine):
    answering(slurm_gpu, UsageError("job 17 is running; it waited 30m00s"))
    assert slurm_gpu("forecast", "17") == 2
    assert "job 17 is running" in slurm_gpu.err


def test_invalid_arguments_are_refused(slurm_gpu: CommandLine):
    assert slurm_gpu("forecast", "17", "18") == 2
    assert "specify the ID of one job" in slurm_gpu.err


PARTITIONS = """\
PartitionName=gpu Default=YES DefaultTime=01:00:00 MaxTime=02:00:00 State=UP
PartitionName=long Default=NO DefaultTime=NONE MaxTime=UNLIMITED State=UP
PartitionName=shut Default=NO DefaultTime=NONE MaxTime=UNLIMITED State=DOWN
"""


@pytest.fixture
def cluster(slurm_gpu: CommandLine) -> None:
    """Simulate partitions (gpu is the default, and shut is down) and an unreachable slurmdbd."""

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        if argv[0] == "sacctmgr":
            raise SlurmError("slurmdbd: Connection refused")
        if "assoc_mgr" in argv:
            return f"UserName={getpass.getuser()}({os.getuid()}) DefAccount=vision DefWckey=\n"
        assert argv[-1] == "partition"
        return PARTITIONS

    slurm_gpu.site.run = run


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--gpus=2", {"gpus": 2, "cores": 1, "nodes": 1, "memory_mib": None, "time_limit_s": 3600}),
        ("--gpus=2 --cpus-per-gpu=4 --mem-per-gpu=8G", {"cores": 8, "memory_mib": 16384}),
        ("--nodes=2 --ntasks-per-node=3 --mem=4G", {"cores": 6, "nodes": 2, "memory_mib": 8192}),
        ("--ntasks=4 --cpus-per-task=2 --mem-per-cpu=1G", {"cores": 8, "memory_mib": 8192}),
        ("--partition=long --time=1-0", {"partition": "long", "time_limit_s": 86400}),
        ("--partition=long", {"time_limit_s": None}),
    ],
)
def test_a_command_is_completed_as_slurm_does(
    slurm_gpu: CommandLine, cluster: None, options: str, expected: dict[str, Any]
):
    asked = answering(slurm_gpu, FORECAST)
    assert slurm_gpu("forecast", "--", "sbatch", *options.split(), "--wrap=true") == 0, slurm_gpu.err
    assert slurm_gpu.out.startswith("this job, submitted now, will probably start")
    assert {name: asked[0][name] for name in expected} == expected
    assert asked[0]["account"] == "vision"


def test_an_unknown_partition_is_named(slurm_gpu: CommandLine, cluster: None):
    answering(slurm_gpu, FORECAST)
    assert slurm_gpu("forecast", "--", "sbatch", "--partition=gup", "--wrap=true") == 2
    assert "Slurm has no partition 'gup'; its partitions are gpu, long, shut" in slurm_gpu.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--gpus=99", "Slurm would refuse this job: "),
        ("--gpus=h100:1", "Slurm would refuse this job: "),
        ("--partition=shut", "Slurm would currently let this job wait indefinitely: "),
    ],
)
def test_a_job_that_would_never_start_has_no_forecast(
    slurm_gpu: CommandLine, cluster: None, options: str, text: str
):
    asked = answering(slurm_gpu, FORECAST)
    assert slurm_gpu("forecast", "--", "sbatch", options, "--wrap=true") == 1
    assert slurm_gpu.out.startswith(f"no forecast: {text}")
    assert slurm_gpu("forecast", "--json", "--", "sbatch", options, "--wrap=true") == 1
    assert json.loads(slurm_gpu.out)["why"].startswith(text)
    assert not asked


POLICY = """\
version: 1
mode: enforce
groups: {vision: {accounts: [vision]}}
bundles:
  train: {gpus: 1, cpus: 4, memory: 32G, mode: fit}
rules:
  - {id: share, for: vision, per: user, why: "Others.", limits: {gpus_total: 6, gpus_running: 3}}
  - {id: long, for: vision, per: job, why: "Others.", limits: {walltime: 1h}, mode: advise}
"""


@pytest.fixture
def policy(slurm_gpu: CommandLine, cluster: None, tmp_path: Path) -> None:
    """Install a policy, and a snapshot in which the caller has two running GPUs."""
    source = parse_yaml(POLICY, "policy.yaml")
    checked = check_policy(source)
    names = resolve_names(checked, source, SystemDirectory())
    facts = SiteFacts(n_gpus=16, run_directory=tmp_path)
    (tmp_path / "job_submit.lua").write_text(build_bundle(compile_policy(checked, names, facts)))
    in_force = read_policy_in_force(tmp_path / "job_submit.lua")
    assert in_force is not None
    me = getpass.getuser()
    usage = Usage(
        {Subject(me, "vision"): RunningAndPending(UsageTotals(jobs=1, mgpu=2000))}, {me: os.getuid()}
    )
    snapshot = Snapshot(1, NOW_S, in_force.groups_id, usage)
    (tmp_path / "snapshot.txt").write_text(render(snapshot))

    class Here:
        """The recorded Slurm, configured in tmp_path."""

        def __init__(self) -> None:
            self.recorded = recorded_client()

        def settings(self) -> SlurmSettings:
            return dataclasses.replace(self.recorded.settings(), conf_path=str(tmp_path / "slurm.conf"))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.recorded, name)

    slurm_gpu.site.connect_slurm = Here


def test_a_job_that_the_policy_would_refuse_has_no_forecast(slurm_gpu: CommandLine, policy: None):
    asked = answering(slurm_gpu, FORECAST)
    words = ("--", "sbatch", "--gpus=7", "--time=30", "--wrap=true")
    assert slurm_gpu("forecast", *words) == 1
    assert slurm_gpu.out.splitlines()[:3] == [
        "no forecast: the policy would refuse this job",
        "  Refused by rule share: Others.",
        "    GPUs running + pending: used 0, limit 6, requested 7.",
    ]
    assert slurm_gpu("forecast", "--json", *words) == 1
    text = json.loads(slurm_gpu.out)
    assert (text["forecast"], text["why"]) == (None, "the policy would refuse this job")
    assert text["policy"]["accepted"] is False
    assert "Refused by rule share: Others." in text["policy"]["messages"]
    assert not asked


def test_messages_of_the_policy_come_first_and_its_defaults_are_used(slurm_gpu: CommandLine, policy: None):
    asked = answering(slurm_gpu, FORECAST)
    words = ("--", "sbatch", "--gpus=1", "--time=90", "--wrap=true")
    assert slurm_gpu("forecast", *words) == 0, slurm_gpu.err
    lines = slurm_gpu.out.splitlines()
    assert lines[:2] == ["the policy accepts the job and prints", "  Violates rule long: Others."]
    assert any(line.startswith("this job, submitted now, will probably start") for line in lines)
    assert (asked[0]["cores"], asked[0]["memory_mib"]) == (4, 32 * 1024)
    assert slurm_gpu("forecast", "--json", *words) == 0
    text = json.loads(slurm_gpu.out)
    assert text["forecast"]["upper_s"] == FORECAST.upper_s
    assert text["policy"]["accepted"] is True


def test_a_limit_that_is_used_up_is_reported_before_the_forecast(slurm_gpu: CommandLine, policy: None):
    asked = answering(slurm_gpu, FORECAST)
    assert slurm_gpu("forecast", "--", "sbatch", "--gpus=2", "--time=30", "--wrap=true") == 0, slurm_gpu.err
    first, second, third, *_ = slurm_gpu.out.splitlines()
    assert first == "the policy would delay the job"
    assert second.startswith(f"  rule share: {getpass.getuser()}'s jobs use 2 of 3 GPUs, so this job waits")
    assert third.startswith("this job, submitted now, will probably start")
    assert slurm_gpu("forecast", "--", "sbatch", "--gpus=1", "--time=30", "--wrap=true") == 0
    assert slurm_gpu.out.startswith("this job, submitted now, ")
    asked.clear()
    assert slurm_gpu("forecast", "--", "sbatch", "--gpus=4", "--time=30", "--wrap=true") == 1
    assert "the policy would refuse this job" in slurm_gpu.out
    assert "GPUs of running jobs: limit 3, requested 4." in slurm_gpu.out
    assert not asked


def test_without_a_policy_on_this_host_a_remark_is_printed(slurm_gpu: CommandLine, cluster: None):
    answering(slurm_gpu, FORECAST)
    words = ("--", "sbatch", "--gpus=2", "--wrap=true")
    assert slurm_gpu("forecast", *words) == 0
    assert "note: the policy was not checked: the policy is not known on this host, because " in slurm_gpu.err
    assert slurm_gpu("forecast", "--json", *words) == 0
    assert json.loads(slurm_gpu.out)["policy"] is None


def test_the_stub_left_by_a_removal_or_rollback_has_no_limits(
    slurm_gpu: CommandLine, policy: None, tmp_path: Path
):
    (tmp_path / "job_submit.lua").write_text(
        "-- slurm-gpu was removed: this lets every job pass.\n"
        "function slurm_job_submit(job, partitions, uid) return slurm.SUCCESS end\n"
        "function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end\n"
        "return slurm.SUCCESS\n"
    )
    answering(slurm_gpu, FORECAST)
    assert slurm_gpu("forecast", "--", "sbatch", "--gpus=4", "--wrap=true") == 0, slurm_gpu.err
    assert slurm_gpu.out.startswith("this job, submitted now, will probably start")


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--gpus=3", 3),
        ("--gpus-per-node=2 --nodes=3", 6),
        ("--gres=gpu:a100:4", 4),
        ("--gpus-per-task=2 --ntasks=4", 8),
        ("--gres=gpu:a100:1,gpu:v100:2", 3),
        ("--gres=gpu", 1),
        ("--cpus-per-task=8", 0),
    ],
)
def test_the_gpus_of_a_command_are_counted(options: str, gpus: int):
    request = parse_command(["sbatch", *options.split(), "--wrap=true"], {})
    assert requested_gpus(request.description(0, "root")) == gpus


def test_a_login_node_needs_no_numpy(tmp_path: Path):
    """Import the command and its client with numpy unavailable."""
    code = (
        "import sys; sys.modules['numpy'] = sys.modules['sklearn'] = None\n"
        "import slurm_gpu.cli.main, slurm_gpu.cli.forecast.group, slurm_gpu.cli.db\n"
        "import slurm_gpu.client.database_client"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
