"""Billing-hours follow the weights of the partition, or its CPUs; MAX_TRES takes the largest amount."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript
from slurm_gpu.slurm.client import SlurmSettings

from .compile import compiled
from .fuzzing import seeded
from .model import Request, RuleModel
from .render import PARTITIONS, description
from .strategies import every_request

JOB = Request(1001, "vision", n_tasks=4, per_job=2, mib_per_node=8 * 1024, minutes=60)


def script_of(flag: str | None = None, lua: str = "5.4") -> PolicyScript:
    rule = RuleModel("billing", "job", limits={"billing_hours": 0})
    more = {"billing": flag, "partition_gpus": {"gpu": 4, "long": 2}}
    return PolicyScript(build_bundle(compiled([rule], "/dev/null", **more)), lua=lua)  # type: ignore[arg-type]


def billed(script: PolicyScript, job: Request, **part: str) -> int:
    """Return the billing-hours that the script requests for a job."""
    partitions = [{**one, **part} for one in PARTITIONS]
    lines = " ".join(line.strip() for line in script.submit(description(job), partitions).messages)
    _, found, numbers = lines.partition("billing-hours of one job: limit 0, requested ")
    return int(numbers.split(".")[0]) if found else 0


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_the_weights_of_the_partition_apply(lua: str) -> None:
    # 4 CPUs + 8 G / 4 + half a node + 2 × (2 + 1.5), rounded down
    assert billed(script_of(lua=lua), JOB) == 13
    assert billed(script_of("MAX_TRES", lua), JOB) == 4
    assert billed(script_of("MAX_TRES_GRES", lua), JOB) == 11


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("", 4),
        ("CPU=0,Mem=1M", 8192),
        ("mem=1", 8192),
        ("mem=0.5K", 4096),  # Slurm reads K like M
        ("mem=1024.0G", 8192),
        ("cpu=2.5,license/matlab=9,bb/datawarp=1G", 10),
        ("GRES/gpu:h100=7", 0),
        ("CPU=1e1,Mem=+0", 40),
    ],
)
def test_weights_have_the_forms_of_slurm_conf(weights: str, expected: int) -> None:
    assert billed(script_of(), JOB, billing_weights_str=weights) == expected


@pytest.mark.parametrize("flag", [None, "MAX_TRES", "MAX_TRES_GRES"])
def test_the_script_and_the_model_bill_the_same_units(flag: str | None) -> None:
    script = script_of(flag)

    @seeded(str(flag))
    @given(every_request())
    def agrees(job: Request) -> None:
        job = replace(job, minutes=60)
        assert billed(script, job) == job.billing(flag)

    agrees()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("", None), ("DEPTH_OBLIVIOUS,MAX_TRES", "MAX_TRES"), ("MAX_TRES_GRES", "MAX_TRES_GRES")],
)
def test_the_calculation_is_that_of_slurm_conf(flags: str, expected: str | None) -> None:
    settings = SlurmSettings(
        cluster="lab",
        version="22.05.8",
        slurm_user="slurm",
        slurm_user_uid=64030,
        conf_path="/etc/slurm/slurm.conf",
        raw={"PriorityFlags": flags},
    )
    assert SiteFacts.of(settings, [], Path("/run"), "UTC").billing == expected


def test_an_endless_amount_is_over_each_limit() -> None:
    endless = description(replace(JOB, min_cpus=4_294_967_295))
    for weights in ("GRES/gpu=2", "CPU=1", "node=1"):
        partitions = [{**one, "billing_weights_str": weights} for one in PARTITIONS]
        assert not script_of().submit(endless, partitions).accepted
