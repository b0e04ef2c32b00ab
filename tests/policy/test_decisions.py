"""Decisions in decisions.log are counted by rule, even if the last line is incomplete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.decisions import RuleCount, count_decisions, find_endings, write_ending
from slurm_gpu.policy.lua.script import PolicyScript

from .compile import compiled
from .model import RuleModel
from .render import PARTITIONS

COMMON = "uid=1 account=vision qos=- partition=gpu tasks=1 mgpu=1000 cpus=1 mib=0 walltime=60"

_NOBODY = 65534


def line(at: int, verdict: str, rules: str, more: str = "") -> str:
    return f"slurm-gpu/1 {at} submit {verdict} t1 {COMMON} rules={rules}{more}\n"


def test_counts_are_by_rule_and_mode(tmp_path: Path) -> None:
    (tmp_path / "decisions.log.1").write_text(line(100, "allow", "-"))
    (tmp_path / "decisions.log").write_text(
        line(101, "deny", "share:gpus_total:enforce,share:jobs_total:enforce,days:walltime:observe")
        + line(102, "allow", "days:walltime:observe,types:gpus:a100:advise,route:set:partition:fit")
        + line(102, "deny", "share:gpus_total:enforce,route:set:partition:fit")
        + line(103, "allow", "share:gpus_total:error", " error=oh%20no")
        + line(105, "allow", "share:gpus_total:error", " error=oh%20no")
        + "nonsense\n\n"
        + line(104, "deny", "share:gpus_total:enforce")[:-8]  # an incomplete line
    )
    counts = count_decisions(tmp_path)
    assert counts is not None
    assert (counts.since_s, counts.accepted, counts.refused, counts.failed) == (100, 4, 2, 2)
    assert counts.rules == {
        "share": RuleCount(refused=2, errors=2, errors_from_s=103, errors_to_s=105),
        "days": RuleCount(observed=2),
        "types": RuleCount(advised=1),
        "route": RuleCount(changed=1),
    }


def test_lines_that_the_script_writes_are_counted(tmp_path: Path) -> None:
    rule = RuleModel("one-each", "job", accounts=frozenset({"vision"}), limits={"gpus": 1000})
    script = PolicyScript(build_bundle(compiled([rule], str(tmp_path / "decisions.log"))), writes=True)
    for gpus in (1, 2, 3):
        job = {"user_id": 1001, "account": "vision", "partition": "gpu", "script": "#!/bin/sh"}
        script.submit({**job, "tres_per_job": f"gres/gpu:{gpus}"}, PARTITIONS)
    counts = count_decisions(tmp_path)
    assert counts is not None
    assert (counts.accepted, counts.refused, counts.rules) == (1, 2, {"one-each": RuleCount(refused=2)})


def test_without_a_log_there_are_no_counts(tmp_path: Path) -> None:
    assert count_decisions(tmp_path) is None
    (tmp_path / "decisions.log").touch()
    counts = count_decisions(tmp_path)
    assert counts is not None
    assert (counts.since_s, counts.accepted, counts.refused, counts.rules) == (None, 0, 0, {})


def test_an_unreadable_log_gives_no_counts(tmp_path: Path) -> None:
    (tmp_path / "decisions.log").touch(mode=0)
    caller = os.geteuid()
    if caller == 0:  # root can read every file
        os.seteuid(_NOBODY)
    try:
        assert count_decisions(tmp_path) is None
    finally:
        os.seteuid(caller)


def test_the_end_of_sharing_is_logged_and_not_counted_as_a_decision(tmp_path: Path) -> None:
    write_ending(tmp_path, 1000.7, "abc1", {"uid": "7", "why": "50 % & more", "co_runners": "8,9"})
    (line,) = find_endings(tmp_path, "abc1")
    assert (line.at_s, line.operation, line.verdict) == (1001, "share", "end")
    assert line.fields == {"uid": "7", "why": "50 % & more", "co_runners": "8,9"}
    counts = count_decisions(tmp_path)
    assert counts is not None
    assert (counts.accepted, counts.refused) == (0, 0)
    assert (tmp_path / "decisions.log").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OutsideError, match=r"decisions\.log"):
        write_ending(tmp_path / "gone", 1, "abc1", {})
