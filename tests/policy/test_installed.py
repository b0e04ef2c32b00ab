"""The policy in force is read from the installed bundle, whatever policy.yaml now contains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.in_force import InForce, compare_installed
from slurm_gpu.policy.lua.installed import GroupInForce, PolicyInForce, read_policy_in_force

from .users import Directory

POLICY = """\
version: 1
mode: enforce
groups:
  vision: {accounts: [Vision], qos: [High], partitions: [gpu]}
  undergrads: {unix_groups: [undergrad]}
  alice: {users: [alice]}
  everyone: {}
rules:
  - {id: share, for: vision, per: user, why: "%s", limits: {gpus_total: 6, jobs_total: 5}}
  - {id: size, for: everyone, per: job, why: "Others get a turn.", limits: {gpus: 3}, mode: advise}
exceptions:
  - {rule: share, user: alice, limits: {gpus_total: 12}, until: 2026-12-05, why: "deadline"}
"""
FACTS = SiteFacts(shards_per_gpu=4, partition_gpus={"gpu": 4})


def install(script: Path, text: str = POLICY % "Because.", facts: SiteFacts = FACTS) -> PolicyInForce:
    source = parse_yaml(text, "policy.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, Directory())
    script.write_text(build_bundle(compile_policy(policy, names, facts)))
    found = read_policy_in_force(script)
    assert found is not None
    return found


def test_groups_and_rules_are_read_from_the_bundle(tmp_path: Path) -> None:
    policy = install(tmp_path / "job_submit.lua")
    assert policy.groups == (
        GroupInForce(
            "vision",
            accounts=frozenset({"vision"}),
            qos=frozenset({"high"}),
            partitions=frozenset({"gpu"}),
        ),
        GroupInForce("undergrads", member_uids=frozenset({1002, 1003})),
        GroupInForce("alice", uids=frozenset({1001})),
        GroupInForce("everyone"),
    )
    assert (policy.shards_per_gpu, policy.partition_gpus) == (4, {"gpu": 4})
    share, size = policy.rules
    assert (share.id, share.group.name, share.per, share.mode) == ("share", "vision", "user", "enforce")
    assert (size.limits, size.mode) == ({"gpus": 3000}, "advise")
    assert not policy.hour_sums


def test_an_exception_replaces_its_limits_until_the_end_of_its_last_day(tmp_path: Path) -> None:
    share = install(tmp_path / "job_submit.lua").rules[0]
    midnight = 1796515200  # after 2026-12-05, UTC
    assert share.limits_of(1001, midnight - 1) == {"gpus_total": 12000, "jobs_total": 5}
    assert share.limits_of(1001, midnight) == {"gpus_total": 6000, "jobs_total": 5}
    assert share.limits_of(1002, midnight - 1) == {"gpus_total": 6000, "jobs_total": 5}
    days = (
        (POLICY % "Because.").replace("until:", "from:").replace("  alice: {", "  alice: {from: 2026-12-06, ")
    )
    later = install(tmp_path / "job_submit.lua", days)
    midnight -= 86400
    assert (
        share.limits
        == later.rules[0].limits_of(1001, midnight - 1)
        != later.rules[0].limits_of(1001, midnight)
    )
    assert [later.groups[2].is_current(midnight + second) for second in (86399, 86400)] == [False, True]


def test_the_id_of_the_groups_changes_only_if_the_counted_jobs_change(tmp_path: Path) -> None:
    script = tmp_path / "job_submit.lua"
    first = install(script)
    assert first.groups_id is not None
    assert install(script, POLICY % "Reworded.").groups_id == first.groups_id
    assert install(script, (POLICY % "Why").replace("[Vision]", "[nlp]")).groups_id != first.groups_id
    assert install(script, facts=SiteFacts(shards_per_gpu=8)).groups_id != first.groups_id
    more = replace(FACTS, default_mib={"per_gpu": 8192})
    assert install(script, facts=more).groups_id != first.groups_id


def test_the_id_of_the_groups_changes_if_a_rule_becomes_hard(tmp_path: Path) -> None:
    """An earlier snapshot lacks the sum of hours that jobs may still use, which would be read as 0."""
    text = (
        "version: 1\ngroups: {all: {}}\nrules:\n"
        "  - {id: a, for: all, per: group, why: x, hard: true, limits: {gpu_hours: {month: {a100: 9}}}}\n"
        "  - {id: b, for: all, per: group, why: x, limits: {gpu_hours: {month: {h100: 9}}}}\n"
    )
    script = tmp_path / "job_submit.lua"
    before = install(script, text)
    assert install(script, text.replace("9}", "8}")).groups_id == before.groups_id
    assert install(script, text.replace("id: b,", "id: b, hard: true,")).groups_id != before.groups_id


def test_a_changed_chained_script_is_a_difference(tmp_path: Path) -> None:
    """The script is loaded with the bundle, so a change takes effect only at an apply or a restart."""
    script, site = tmp_path / "job_submit.lua", tmp_path / "site.lua"
    site.write_text("return slurm.SUCCESS\n")
    text = f"chain: {{before: {site}}}\n" + POLICY % "Because."
    install(script, text)
    source = parse_yaml(text, "policy.yaml")

    def found() -> InForce:
        return compare_installed(script, check_policy(source), source, FACTS, Directory())

    assert found() is InForce.SAME
    site.write_text("return slurm.ERROR\n")
    assert found() is InForce.DIFFERENT
    site.unlink()
    assert found() is InForce.DIFFERENT


@pytest.mark.parametrize("why", ["a\\n\\nlocal lib = { modules = {} }", "]] end", "한국어 \\\\ %s"])
def test_no_text_of_the_policy_ends_the_table_early(tmp_path: Path, why: str) -> None:
    """The texts are written as they appear between double quotes in YAML."""
    shown = why.replace("\\n\\n", " ").replace("\\\\", "\\")
    assert install(tmp_path / "job_submit.lua", POLICY.replace("%s", why)).rules[0].why == shown


@pytest.mark.parametrize(
    ("group", "matches"),
    [
        (GroupInForce("g"), True),
        (GroupInForce("g", accounts=frozenset({"vision"})), True),
        (GroupInForce("g", accounts=frozenset({"nlp"})), False),
        (GroupInForce("g", partitions=frozenset({"long"})), True),
        (GroupInForce("g", partitions=frozenset({"lon"})), False),
        (GroupInForce("g", uids=frozenset({1001}), member_uids=frozenset({1002})), False),
        (GroupInForce("g", qos=frozenset({"normal"}), member_uids=frozenset({1001})), True),
    ],
)
def test_all_conditions_of_a_group_must_match(group: GroupInForce, matches: bool) -> None:
    assert group.matches(1001, "Vision", "Normal", "gpu,long") is matches


def test_a_sites_own_script_has_no_policy_and_a_truncated_bundle_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "job_submit.lua"
    assert read_policy_in_force(script) is None
    script.write_text("return slurm.SUCCESS")
    assert read_policy_in_force(script) is None
    install(script)
    script.write_text(script.read_text()[:800])
    with pytest.raises(OutsideError, match="does not contain a readable policy"):
        read_policy_in_force(script)
