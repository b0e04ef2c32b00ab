"""Rules ask for the QOS in which Slurm puts a job, whether the job names it or not."""

from __future__ import annotations

import pytest

from slurm_gpu.policy.bundle import build_bundle
from slurm_gpu.policy.script import PolicyScript

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description

SOLO = RuleModel("solo", "job", qos=frozenset({"solo"}), limits={"gpus": 1000})
NORMAL = RuleModel("normal", "job", qos=frozenset({"normal"}), limits={"gpus": 3000})


@pytest.mark.parametrize(
    ("named", "default", "usable", "most"),
    [
        ("solo", "normal", "normal,solo", 1),
        (None, "Solo", "normal,solo", 1),
        (None, None, "solo", 1),
        (None, None, "normal,solo", 3),
        (None, None, None, 3),
        ("normal", None, "solo", 3),
    ],
)
def test_the_qos_is_the_one_named_else_the_default_else_the_only_one(
    named: str | None, default: str | None, usable: str | None, most: int
) -> None:
    """Where there are several and none is the default, Slurm takes `normal`."""
    script = PolicyScript(build_bundle(compiled([SOLO, NORMAL], "/nonexistent/decisions.log")))

    def accepted(gpus: int) -> bool:
        desc = description(Request(uid=1001, account="vision", per_job=gpus))
        told = {"qos": named, "default_qos": default, "assoc_qos": usable}
        return script.submit(desc | told, PARTITIONS).accepted

    assert accepted(most)
    assert not accepted(most + 1)
