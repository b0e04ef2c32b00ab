"""A broken policy is never installed, and the running one stays; a good one is swapped in whole."""

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
    """Install; give back where the previous script is kept."""
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
    """slurmctld passes over a script that is not newer than the one it runs."""
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


def test_an_equal_bundle_is_left_alone(tmp_path: Path) -> None:
    put(BUNDLE, tmp_path)
    before = (tmp_path / "etc" / "job_submit.lua").stat()
    put(BUNDLE, tmp_path, now=2_000_000)
    after = (tmp_path / "etc" / "job_submit.lua").stat()
    assert (after.st_ino, after.st_mtime) == (before.st_ino, before.st_mtime)


def test_a_sites_own_script_is_replaced_only_when_told(tmp_path: Path) -> None:
    own = tmp_path / "etc" / "job_submit.lua"
    own.write_text("-- ours since 2019\n")
    with pytest.raises(UsageError, match="is not slurm-gpu's; to keep using it, name a copy"):
        put(BUNDLE, tmp_path)
    assert own.read_text() == "-- ours since 2019\n"
    kept = put(BUNDLE, tmp_path, replace_foreign=True)
    assert kept is not None
    assert kept.read_text() == "-- ours since 2019\n"


def test_what_was_there_comes_back_and_is_newer(tmp_path: Path) -> None:
    script = tmp_path / "etc" / "job_submit.lua"
    script.write_bytes(b"-- caf\xe9, ours since 2009\n")
    kept = put(BUNDLE, tmp_path, replace_foreign=True)
    before = script.stat().st_mtime
    restore(kept, script, "-- no rules\n", lambda: 5.0)
    assert script.read_bytes() == b"-- caf\xe9, ours since 2009\n"
    assert script.stat().st_mtime == before + 1
    restore(None, script, "-- no rules\n", lambda: 5.0)
    assert script.read_text() == "-- no rules\n"
    with pytest.raises(OutsideError, match="stays as it is"):
        restore(tmp_path / "gone.lua", script, "")


def test_nothing_is_left_beside_the_script(tmp_path: Path) -> None:
    put(BUNDLE, tmp_path)
    assert [path.name for path in (tmp_path / "etc").iterdir()] == ["job_submit.lua"]


def test_only_so_many_previous_scripts_are_kept(tmp_path: Path) -> None:
    for number in range(25):
        put(f"{BUNDLE}-- {number}\n", tmp_path, now=1_000_000 + number)
    assert len(list((tmp_path / "state").iterdir())) == 20


def test_a_script_of_the_sites_own_is_never_given_up(tmp_path: Path) -> None:
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


def test_one_that_is_put_there_again_and_again_is_kept_once(tmp_path: Path) -> None:
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


def test_a_good_bundle_passes_its_trial() -> None:
    try_bundle(POLICY, BUNDLE)


def test_the_decision_log_is_slurmctlds_alone(tmp_path: Path) -> None:
    prepare_run_directory(tmp_path / "run", os.getuid())
    prepare_run_directory(tmp_path / "run", os.getuid())
    assert (tmp_path / "run" / "decisions.log").stat().st_mode & 0o777 == 0o600


def test_a_limit_on_gpu_hours_passes_before_slurm_gpuctld_counts_them() -> None:
    policy = bundle_table("limits: {gpu_hours: {week: 100}}")
    try_bundle(policy, build_bundle(policy))


def test_the_trial_looks_at_no_snapshot_of_the_clusters(tmp_path: Path) -> None:
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


def test_all_luas_of_the_trial_decide_at_one_moment(tmp_path: Path) -> None:
    """Else a second that passes between two of them, or a job of the cluster, is taken for a disagreement."""
    log = tmp_path / "decisions.log"
    log.write_text("of the cluster\n")
    tells = """
function slurm_job_submit(...)
  slurm.log_user("%s %s %s", os.time(), os.date("%S"), tostring(io.open("@LOG@", "r")))
  return 0
end
slurm_job_modify = slurm_job_submit
return 0
"""
    ticks = itertools.count(1_000_000)
    try_bundle(
        POLICY | {"decisions_log": str(log)}, tells.replace("@LOG@", str(log)), now=lambda: next(ticks)
    )
