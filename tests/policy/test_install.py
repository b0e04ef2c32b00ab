"""An invalid bundle is never installed and the current script remains; a valid one replaces it atomically."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.install import (
    install,
    prepare_replacement,
    prepare_run_directory,
    put_aside,
    restore,
    try_bundle,
)

from .compile import compiled
from .model import RuleModel
from .users import Directory

POLICY = compiled(
    [RuleModel("r", "job", accounts=frozenset({"vision"}), limits={"gpus": 1000})], "/nonexistent/d"
)
BUNDLE = build_bundle(POLICY)


def put(bundle: str, tmp_path: Path, now: float = 1_000_000.5, **more: bool) -> Path | None:
    """Install a bundle and return the path of the copy of the previous script."""
    replacement = prepare_replacement(
        bundle, tmp_path / "etc", tmp_path / "state", owner_uid=os.getuid(), now=lambda: now, **more
    )
    if replacement is None:
        return None
    install(replacement, lambda: now)
    return replacement.previous


@pytest.fixture(autouse=True)
def _etc(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()


def test_the_modification_time_is_always_newer_in_whole_seconds(tmp_path: Path) -> None:
    """slurmctld ignores a script that is not newer than the one that it runs."""
    script = tmp_path / "etc" / "job_submit.lua"
    put(BUNDLE, tmp_path)
    first = script.stat().st_mtime
    put(BUNDLE + "-- 2\n", tmp_path)  # within the same second
    second = script.stat().st_mtime
    put(BUNDLE + "-- 3\n", tmp_path, now=5.0)  # the clock was set back
    assert (first, second, script.stat().st_mtime) == (1_000_000, 1_000_001, 1_000_002)


def test_the_previous_script_is_kept(tmp_path: Path) -> None:
    assert put(BUNDLE, tmp_path) is None
    kept = put(BUNDLE + "-- 2\n", tmp_path)
    assert kept is not None
    assert kept.read_text() == BUNDLE
    assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_an_equal_bundle_is_not_written_again(tmp_path: Path) -> None:
    put(BUNDLE, tmp_path)
    before = (tmp_path / "etc" / "job_submit.lua").stat()
    put(BUNDLE, tmp_path, now=2_000_000)
    after = (tmp_path / "etc" / "job_submit.lua").stat()
    assert (after.st_ino, after.st_mtime) == (before.st_ino, before.st_mtime)


def test_a_sites_own_script_is_replaced_only_on_request(tmp_path: Path) -> None:
    own = tmp_path / "etc" / "job_submit.lua"
    own.write_text("-- ours since 2019\n")
    with pytest.raises(UsageError, match="is not slurm-gpu's; to keep using it, copy it"):
        put(BUNDLE, tmp_path)
    assert own.read_text() == "-- ours since 2019\n"
    kept = put(BUNDLE, tmp_path, replace_foreign=True)
    assert kept is not None
    assert kept.read_text() == "-- ours since 2019\n"


def test_a_restored_script_has_a_newer_modification_time(tmp_path: Path) -> None:
    script = tmp_path / "etc" / "job_submit.lua"
    script.write_bytes(b"-- caf\xe9, ours since 2009\n")
    kept = put(BUNDLE, tmp_path, replace_foreign=True)
    before = script.stat().st_mtime
    restore(kept, script, "-- no rules\n", lambda: 5.0)
    assert script.read_bytes() == b"-- caf\xe9, ours since 2009\n"
    assert script.stat().st_mtime == before + 1
    restore(None, script, "-- no rules\n", lambda: 5.0)
    assert script.read_text() == "-- no rules\n"
    with pytest.raises(OutsideError, match="was not changed"):
        restore(tmp_path / "gone.lua", script, "")


def test_no_other_file_remains_next_to_the_script(tmp_path: Path) -> None:
    put(BUNDLE, tmp_path)
    assert [path.name for path in (tmp_path / "etc").iterdir()] == ["job_submit.lua"]


def test_the_number_of_kept_scripts_is_limited(tmp_path: Path) -> None:
    for number in range(25):
        put(f"{BUNDLE}-- {number}\n", tmp_path, now=1_000_000 + number)
    assert len(list((tmp_path / "state").iterdir())) == 20


def test_a_script_of_the_site_is_always_kept(tmp_path: Path) -> None:
    own = tmp_path / "etc" / "job_submit.lua"
    own.write_text("-- ours since 2019\n")
    first = put(BUNDLE, tmp_path, now=1_000_000, replace_foreign=True)
    for number in range(25):
        put(f"{BUNDLE}-- {number}\n", tmp_path, now=1_000_001 + number)
    own.write_text("-- ours since 2026\n")
    second = put(BUNDLE, tmp_path, now=1_000_100, replace_foreign=True)
    for number in range(25):
        put(f"{BUNDLE}-- {number}\n", tmp_path, now=1_000_101 + number)
    assert first is not None
    assert second is not None
    assert (first.read_text(), second.read_text()) == ("-- ours since 2019\n", "-- ours since 2026\n")
    assert put_aside(tmp_path / "state") == second
    assert len(list((tmp_path / "state").iterdir())) == 22


def test_a_script_of_the_site_that_is_replaced_repeatedly_is_kept_once(tmp_path: Path) -> None:
    own, kept = tmp_path / "etc" / "job_submit.lua", set()
    for number in range(3):
        own.write_text("-- as configuration management has it\n")
        kept.add(put(BUNDLE, tmp_path, now=1_000_000 + number, replace_foreign=True))
    assert len(kept) == 1
    assert put_aside(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "broken",
    [
        BUNDLE.replace("function slurm_job_modify", "function slurm_job_modfy"),
        BUNDLE.replace("return (function(...)", "return (function(...) oops("),
        BUNDLE.replace("job.tasks = 1\n", "job.tasks = nothing.at.all\n"),
        BUNDLE.replace("local days = math.floor(seconds / 86400)", "local days = seconds // 86400"),
        BUNDLE.replace('"limits"] = { ["gpus"] = 1000 }', '"limits"] = { ["gpus"] = "x" }'),
        "error('at load')",
    ],
    ids=["no modify function", "syntax", "runtime error", "newer Lua only", "bad data", "error at load"],
)
def test_a_bundle_that_fails_its_trial_is_refused(broken: str) -> None:
    assert broken != BUNDLE
    with pytest.raises(OutsideError, match="not installed"):
        try_bundle(POLICY, broken)


def test_a_valid_bundle_passes_its_trial() -> None:
    try_bundle(POLICY, BUNDLE)


def test_among_many_groups_every_kind_of_group_is_tried() -> None:
    alike = [RuleModel(f"r{n}", "job", accounts=frozenset({f"a{n}"}), limits={"gpus": 4}) for n in range(30)]
    last = RuleModel("last", "job", accounts=frozenset({"vision"}), limits={"gpus": 4, "cpus": 64})
    policy = compiled([*alike, last], "/nonexistent/d")
    bundle = build_bundle(policy)
    try_bundle(policy, bundle)
    with pytest.raises(OutsideError, match="not installed"):
        try_bundle(policy, bundle.replace('["cpus"] = 64', '["cpus"] = "x"'))


def test_only_slurm_user_can_read_the_decision_log(tmp_path: Path) -> None:
    prepare_run_directory(tmp_path / "run", os.getuid())
    prepare_run_directory(tmp_path / "run", os.getuid())
    assert (tmp_path / "run" / "decisions.log").stat().st_mode & 0o777 == 0o600


def test_a_limit_on_gpu_hours_passes_the_trial_without_a_snapshot() -> None:
    policy = bundle_table("limits: {gpu_hours: {week: 100}}")
    try_bundle(policy, build_bundle(policy))


def test_the_trial_does_not_read_the_clusters_snapshot(tmp_path: Path) -> None:
    (tmp_path / "snapshot.txt").write_text("slurm-gpu-snapshot 1 nonsense")
    policy = bundle_table("limits: {gpus_total: 4}", tmp_path)
    try_bundle(policy, build_bundle(policy))


def bundle_table(limits: str, run_directory: Path = Path("/nonexistent")) -> dict[str, Plain]:
    text = (
        "version: 1\nmode: enforce\ngroups: {g: {}}\n"
        f"rules: [{{id: r, for: g, per: user, why: W., {limits}}}]\n"
    )
    source = parse_yaml(text, "policy.yaml")
    policy = check_policy(source)
    return compile_policy(
        policy, resolve_names(policy, source, Directory()), SiteFacts(run_directory=run_directory)
    )


def test_the_trial_gives_all_lua_versions_the_same_time_and_log(tmp_path: Path) -> None:
    """Otherwise, a change of the clock or a job in the cluster's log could make the versions disagree."""
    log = tmp_path / "decisions.log"
    log.write_text("of the cluster\n")
    script = """
function slurm_job_submit(...)
  slurm.log_user("%s %s %s", os.time(), os.date("%S"), tostring(io.open("@LOG@", "r")))
  return 0
end
slurm_job_modify = slurm_job_submit
return 0
"""
    ticks = itertools.count(1_000_000)
    try_bundle(
        POLICY | {"decisions_log": str(log)}, script.replace("@LOG@", str(log)), now=lambda: next(ticks)
    )
