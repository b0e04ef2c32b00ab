"""`policy check` names accounts, users and QOS that match no job."""

from __future__ import annotations

import textwrap

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.native.required import SlurmdbdLimits
from slurm_gpu.policy.native.unknown_names import unknown_to_slurmdbd
from slurm_gpu.slurm.sacctmgr import Association, Qos

from .limitstore import TRES, user

FOUND = SlurmdbdLimits(
    cluster="c",
    associations=(
        Association(account="root"),
        Association(account="vision", parent="root"),
        user("alice", "vision"),
        Association(account="dept", parent="root"),
        Association(account="dept_ai", parent="dept"),
        user("bob", "dept_ai"),
        Association(account="old", parent="root"),
    ),
    qos=(Qos(name="normal"), Qos(name="sg-long")),
    tres=frozenset(TRES),
)


def warnings(group: str, more: str = "") -> list[str]:
    text = f"version: 1\ngroups:\n  g: {group}\n{textwrap.dedent(more)}"
    source = parse_yaml(text, "policy.yaml")
    return [str(one) for one in unknown_to_slurmdbd(check_policy(source), source, FOUND, 16)]


@pytest.mark.parametrize(
    ("group", "column", "message"),
    [
        ("{accounts: [visoin]}", 18, "cluster c has no account 'visoin' in slurmdbd; did you mean vision?"),
        (
            "{accounts: [physics]}",
            18,
            "cluster c has no account 'physics' in slurmdbd; see sacctmgr show associations",
        ),
        (
            "{accounts: [dept]}",
            18,
            "account 'dept' has no users of its own, so it matches no job; "
            "write dept/* for it and its sub-accounts: dept_ai",
        ),
        ("{accounts: [old/*]}", 18, "no account of 'old/*' has users, so it matches no job"),
        ("{accounts: [old]}", 18, "account 'old' has no users, so it matches no job"),
        ("{users: [carol]}", 15, "user 'carol' has no account of cluster c in slurmdbd"),
        ("{qos: [sg-lnog]}", 13, "slurmdbd has no QOS 'sg-lnog'; did you mean sg-long?"),
    ],
)
def test_a_name_that_matches_no_job_is_a_warning(group: str, column: int, message: str) -> None:
    assert warnings(group) == [f"policy.yaml:3:{column}: {message}"]


@pytest.mark.parametrize(
    "group",
    ["{accounts: [Vision]}", "{accounts: [dept, dept_ai]}", "{users: [alice]}", "{qos: [SG-long]}", "{}"],
)
def test_other_names_are_not(group: str) -> None:
    assert warnings(group) == []


def test_a_qos_that_apply_creates_is_known() -> None:
    more = """
    manages: {qos: [sg-*]}
    owners: {vision: {gpus: 4, lend_in: sg-loans, return_within: 10m}}
    """
    assert warnings("{qos: [sg-loans]}\n  vision: {accounts: [vision]}", more) == []
