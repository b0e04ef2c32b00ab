"""Rules with `per: account` count all jobs of an account together."""

from __future__ import annotations

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .model import Request
from .render import PARTITIONS, description
from .users import Directory

TEXT = """\
version: 1
mode: enforce
groups: {labs: {accounts: [vision, nlp]}, all: {}}
rules: [{id: share, for: labs, per: account, why: "Each lab has four GPUs.", limits: {gpus_total: 4}}]
"""


def script(text: str = TEXT, lua: str = "5.4") -> PolicyScript:
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    compiled = compile_policy(policy, resolve_names(policy, source, Directory()), SiteFacts(year=2026))
    return PolicyScript(build_bundle(compiled), lua=lua, now=lambda: 1_800_000_000, uptime=lambda: 5000.0)


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_users_of_an_account_share_its_limit(lua: str) -> None:
    plugin = script(lua=lua)
    jobs = [(1001, "vision", 3), (1002, "nlp", 2), (1002, "vision", 1), (1003, "Nlp", 2), (1001, "other", 9)]
    for uid, account, gpus in jobs:
        assert plugin.submit(description(Request(uid, account, per_job=gpus)), PARTITIONS).accepted
    refused = plugin.submit(description(Request(1003, "vision", per_job=1)), PARTITIONS)
    assert not refused.accepted
    assert refused.messages == (
        "Refused by rule share: Each lab has four GPUs.",
        "  GPUs running + pending: used 4 (4 just submitted), limit 4, requested 1 (limit",
        "    shared by account vision).",
        "  Jobs that were just submitted count before they appear in the queue. If Slurm",
        "    refused them, try again in 10 s; otherwise wait for a job to end.",
    )


def test_a_user_can_have_no_exception_but_a_group_of_accounts_can() -> None:
    exception = "exceptions: [{rule: share, %s, limits: {gpus_total: 8}, why: w}]\n"
    with pytest.raises(
        InvalidFileError, match="counts all jobs of an account together, so a user cannot have"
    ):
        check_policy(parse_yaml(TEXT + exception % "user: alice", "p.yaml"))
    text = TEXT.replace("all: {}", "big: {accounts: [nlp]}") + exception % "group: big"
    plugin = script(text)
    for account, accepted in (("nlp", True), ("vision", False)):
        job = description(Request(1001, account, per_job=8))
        assert plugin.submit(job, PARTITIONS).accepted == accepted
