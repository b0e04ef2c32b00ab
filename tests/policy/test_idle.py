"""`cancel_idle:` in policy.yaml ends jobs that do not use their GPUs, after warnings."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.installed import CancelIdleInForce, policy_of
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json
from slurm_gpu.policy.pages.text import render_text

from .checking import check, mistakes
from .users import UIDS, Directory

GROUPS = (
    "version: 1\ngroups:\n  vision: {accounts: [vision]}\n  course: {accounts: [cs540], until: 2026-12-20}\n"
)
POLICY = f"""\
{GROUPS}\
cancel_idle: {{for: [vision, course], exempt: [course], warn: [30m, 60m], after: 2h, action: hold,
              mode: enforce, why: "Others wait for these GPUs."}}
"""
# 2026-12-20 00:00 UTC.
LAST_DAY_S = 1_797_724_800
ALICE = UIDS["alice"]
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).resolve().parents[2] / "etc/policy.schema.json").read_text())
)


def bundle(text: str, directory: Path) -> str:
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    facts = SiteFacts(n_gpus=16, run_directory=directory)
    return build_bundle(compile_policy(policy, resolve_names(policy, source, Directory()), facts))


def in_force(text: str, directory: Path) -> CancelIdleInForce:
    found = policy_of(bundle(text, directory)).cancel_idle
    assert found is not None
    return found


def test_cancel_idle_is_read_shown_and_compiled(tmp_path: Path) -> None:
    policy = check(POLICY)
    settings = json.loads(json.dumps(to_json(policy)["cancel_idle"]))
    assert settings == {
        "for": ["vision", "course"],
        "exempt": ["course"],
        "warn_s": [1800, 3600],
        "after_s": 7200,
        "action": "hold",
        "mode": "enforce",
        "why": "Others wait for these GPUs.",
    }
    page = " ".join(render_text(make_page(policy)).split())
    assert "The owner of a job that has not used any GPU since its start is warned after 30m and 1h." in page
    assert "After 2h, the job is requeued and held, but never without a warning" in page
    found = in_force(POLICY, tmp_path)
    assert (found.mode, found.action, found.warn_s, found.after_s) == ("enforce", "hold", (1800, 3600), 7200)


def test_it_applies_to_its_groups_without_the_exempt_ones(tmp_path: Path) -> None:
    found = in_force(POLICY, tmp_path)
    assert found.binds(ALICE, "vision", "normal", "gpu", LAST_DAY_S)
    assert not found.binds(ALICE, "nlp", "normal", "gpu", LAST_DAY_S)
    assert not found.binds(ALICE, "cs540", "normal", "gpu", LAST_DAY_S)  # account cs540 is exempt
    everybody = in_force("version: 1\ncancel_idle: {warn: [30m], after: 2h, why: x}\n", tmp_path)
    assert everybody.binds(ALICE, "nlp", "normal", "gpu", LAST_DAY_S)


def test_a_group_that_ended_neither_binds_nor_exempts(tmp_path: Path) -> None:
    only = in_force(f"{GROUPS}cancel_idle: {{for: [course], warn: [30m], after: 2h, why: x}}\n", tmp_path)
    assert only.binds(ALICE, "cs540", "normal", "gpu", LAST_DAY_S)
    assert not only.binds(ALICE, "cs540", "normal", "gpu", LAST_DAY_S + 86400)
    but = in_force(f"{GROUPS}cancel_idle: {{exempt: [course], warn: [30m], after: 2h, why: x}}\n", tmp_path)
    assert not but.binds(ALICE, "cs540", "normal", "gpu", LAST_DAY_S)
    assert but.binds(ALICE, "cs540", "normal", "gpu", LAST_DAY_S + 86400)


def test_a_policy_without_cancel_idle_compiles_to_a_script_without_it(tmp_path: Path) -> None:
    without = bundle(GROUPS, tmp_path)
    assert "cancel_idle" not in without
    assert policy_of(without).cancel_idle is None


def test_cancel_idle_does_not_change_the_id_of_the_groups(tmp_path: Path) -> None:
    assert policy_of(bundle(GROUPS, tmp_path)).groups_id == policy_of(bundle(POLICY, tmp_path)).groups_id


def test_the_default_mode_ends_no_job() -> None:
    settings = check("version: 1\ncancel_idle: {warn: [30m], after: 2h, why: Others wait.}\n").cancel_idle
    assert settings is not None
    assert (settings.mode, settings.action, settings.groups, settings.exempt) == (
        "observe",
        "cancel",
        None,
        (),
    )


MISTAKES = [
    ("{after: 2h, why: x}", "cancel_idle lacks warn"),
    ("{warn: [30m], why: x}", "cancel_idle lacks after"),
    ("{warn: [30m], after: 2h}", "cancel_idle lacks why"),
    ("{warn: [], after: 2h, why: x}", "warn: [] must be a list of 1 to 5 durations, such as [4h]"),
    ("{warn: 30m, after: 2h, why: x}", "warn: '30m' must be a list of 1 to 5 durations"),
    ("{warn: [30], after: 2h, why: x}", "warn: 30 has no unit; write 30m, 30h"),
    ("{warn: [2m], after: 2h, why: x}", "warn: 2m is too early: jobs are not checked before 5m"),
    ("{warn: [60m, 30m], after: 2h, why: x}", "warn: 30m must be later than the previous warning, 1h"),
    ("{warn: [30m, 2h], after: 2h, why: x}", "after: 2h must be later than the last warning, 2h; no job is"),
    ("{warn: [30m], after: 2h, why: x, for: [visoin]}", "for: 'visoin' is not a group; did you mean vision"),
    ("{warn: [30m], after: 2h, why: x, exempt: []}", "exempt: [] must be a list of names"),
    (
        "{warn: [30m], after: 2h, why: x, action: kill}",
        "action: 'kill' is not valid; allowed: cancel, hold",
    ),
    ("{warn: [30m], after: 2h, why: x, mode: on}", "mode"),
    ("{warn: [30m], after: 2h, why: x, who: y}", "who"),
]
CHECK_ONLY = ("too early", "must be later", "is not a group")


@pytest.mark.parametrize(("line", "complaint"), MISTAKES)
def test_mistakes_in_cancel_idle_are_named(line: str, complaint: str) -> None:
    assert any(complaint in mistake for mistake in mistakes(f"{GROUPS}cancel_idle: {line}\n"))


@pytest.mark.parametrize(("line", "complaint"), MISTAKES)
def test_the_schema_finds_the_same_mistakes_as_far_as_a_schema_can(line: str, complaint: str) -> None:
    value = parse_yaml(f"version: 1\ncancel_idle: {line}\n", "p.yaml").value
    marked = list(SCHEMA.iter_errors(value))
    assert bool(marked) is not any(words in complaint for words in CHECK_ONLY)
