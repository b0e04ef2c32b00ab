"""`slurm-gpu explain` names the limits in mode observe that a job violates."""

import dataclasses

import pytest

from slurm_gpu.cli.policy.explain import _observed
from slurm_gpu.policy.lua.script import Considered

_LIMIT = Considered(
    rule="share",
    mode="observe",
    label="GPUs running + pending",
    used="2",
    limit="4",
    requested="3",
    fits=False,
)


@pytest.mark.parametrize(
    ("changes", "amounts"),
    [
        ({}, "GPUs running + pending: used 2, limit 4, requested 3"),
        ({"used": None, "label": "GPUs in one job"}, "GPUs in one job: limit 4, requested 3"),
        (
            {"used": None, "label": "GPUs on each node", "limit": "at least 4"},
            "GPUs on each node: at least 4, requested 3",
        ),
    ],
)
def test_a_violated_limit_is_named_with_its_amounts(changes: dict[str, str | None], amounts: str):
    limit = dataclasses.replace(_LIMIT, **changes)
    assert list(_observed([limit], ())) == [f"rule share (mode: observe) would refuse the job: {amounts}"]


@pytest.mark.parametrize("changes", [{"fits": True}, {"mode": "enforce"}, {"mode": "advise"}])
def test_other_limits_are_not_named(changes: dict[str, object]):
    assert list(_observed([dataclasses.replace(_LIMIT, **changes)], ())) == []


def test_a_rule_that_would_change_the_job_does_not_refuse_it():
    assert list(_observed([_LIMIT], {"share"})) == []
