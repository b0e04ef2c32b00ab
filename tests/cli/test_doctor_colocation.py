"""`slurm-gpu doctor` reports what prevents jobs from sharing GPUs."""

from __future__ import annotations

import dataclasses
import json

import pytest

from slurm_gpu.cli.doctor.checks.finding import CheckResult, Level
from slurm_gpu.cli.doctor.checks.slurm import colocation
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from tests.cli.installation import Installation, worst
from tests.controller.fakes import make_node

POLICY = 'version: 1\ncolocation: {mode: enforce, why: "Small ones."}\n'
RIGHT = {"SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CORE_MEMORY"}


def found(
    installed: Installation, policy: str = POLICY, shards: int = 32, age_s: float = 5, **status: object
) -> CheckResult:
    compiled = compile_policy(check_policy(parse_yaml(policy, "p")), ResolvedNames({}, {}), SiteFacts())
    (installed.root / "slurm" / "job_submit.lua").write_text(build_bundle(compiled))
    at = installed.at()
    run = installed.root / "run"
    run.mkdir(exist_ok=True)
    (run / "colocation.json").write_text(json.dumps({"as_of_s": at.site.wall() - age_s, **status}))
    at = dataclasses.replace(at, controller_run=run)
    at.__dict__["nodes"] = [make_node("n1", shards=shards), make_node("n2", gpus={}, shards=0)]
    return worst(colocation.colocation(at))


def test_a_complete_setup_is_ok(installed: Installation) -> None:
    installed.conf.update(RIGHT)
    finding = found(installed)
    assert (finding.level, finding.message) == (
        Level.OK,
        "mode enforce: jobs can share the GPUs of 1 node",
    )


def test_without_job_requeue_a_warning_is_given(installed: Installation) -> None:
    installed.conf.update(RIGHT | {"JobRequeue": "0"})
    finding = found(installed)
    assert (finding.level, "only jobs of `sbatch --requeue` share" in finding.message) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("SelectType", "select/linear", "only select/cons_tres supports shards"),
        ("SelectTypeParameters", "CR_CORE,LL_SHARED_GRES", "do not share GPUs"),
        ("SelectTypeParameters", "CR_CORE,MULTIPLE_SHARING_GRES_PJ", "a job may get shards of several GPUs"),
    ],
)
def test_unsuitable_settings_in_slurm_conf_are_reported(
    installed: Installation, key: str, value: str, message: str
) -> None:
    installed.conf.update(RIGHT | {key: value})
    finding = found(installed)
    assert (finding.level, message in finding.message) == (Level.FAIL, True)
    assert finding.remedy


def test_nodes_without_shards_are_reported(installed: Installation) -> None:
    installed.conf.update(RIGHT)
    assert "no node has shards" in found(installed, shards=0).message


def test_too_few_shards_are_reported(installed: Installation) -> None:
    installed.conf.update(RIGHT)
    assert found(installed, shards=8).level is Level.WARN


def test_a_missing_slurm_gpuctld_is_reported(installed: Installation) -> None:
    installed.conf.update(RIGHT)
    finding = found(installed, age_s=100)
    assert (finding.level, "slurm-gpuctld on this host does not place jobs" in finding.message) == (
        Level.FAIL,
        True,
    )


def test_a_policy_without_colocation_is_skipped(installed: Installation) -> None:
    assert found(installed, "version: 1\n").level is Level.SKIPPED


def test_other_hosts_are_skipped(installed: Installation) -> None:
    (finding,) = colocation.colocation(installed.at("elsewhere"))
    assert finding.level is Level.SKIPPED


def test_a_planner_that_cannot_be_used_is_reported(installed: Installation) -> None:
    installed.conf.update(RIGHT)
    planner = {"asked": "dqngpu", "serves": "annealing", "why": "/m.npz is not there yet"}
    finding = found(installed, planner=planner)
    assert (finding.level, "annealing is used instead of dqngpu: /m.npz" in finding.message) == (
        Level.WARN,
        True,
    )
    assert found(installed, planner=planner | {"serves": "dqngpu", "why": None}).level is Level.OK
