"""A site's own job_submit.lua can run before or after that of slurm-gpu, with its own globals."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.install import try_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description, record

SITE = """\
state = "the site's own"
local count = 0

function slurm_job_submit(job_desc, part_list, submit_uid)
  count = count + 1
  if job_desc.comment == "no" then
    slurm.log_user("%s", "refused by the site, call " .. count)
    return 2000
  end

  for _ in pairs(slurm.reservations) do end
  if job_desc.comment == "code" then return slurm.ESLURM_INVALID_LICENSES end
  if job_desc.comment == "more" then job_desc.tres_per_job = "gres:gpu:9" end
  if job_desc.comment == "fail" then return nothing.at.all end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return job_desc.comment == "no" and 2001 or slurm.SUCCESS
end
return slurm.SUCCESS
"""
ALICE = Request(uid=1001, account="vision", per_job=1)
SIZE = RuleModel("size", "job", limits={"gpus": 4000})


def script_with(
    tmp_path: Path, place: str, text: str | None = SITE, lua: str = "5.4", on_error: str = "allow"
) -> PolicyScript:
    file = tmp_path / "site.lua"
    if text is not None:
        file.write_text(text)
    table = compiled([SIZE], "/nonexistent/decisions.log", **{f"chain_{place}": str(file)})
    table["rules"][0]["on_error"] = on_error  # type: ignore[index,call-overload]
    return PolicyScript(build_bundle(table), lua=lua)


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_job_needs_the_acceptance_of_both_scripts(tmp_path: Path, lua: str, place: str) -> None:
    script = script_with(tmp_path, place, lua=lua)
    assert script.submit(description(ALICE), PARTITIONS).accepted
    refusal = script.submit(description(ALICE) | {"comment": "no"}, PARTITIONS)
    assert (refusal.code, refusal.messages) == (2000, ("refused by the site, call 2",))
    ours = script.submit(description(ALICE) | {"tres_per_job": "gres:gpu:5"}, PARTITIONS)
    assert ours.code == 2050
    assert not script.submit(description(ALICE) | {"comment": "code"}, PARTITIONS).accepted
    row = record(1, ALICE)
    assert script.modify({"comment": "no"}, row, PARTITIONS).code == 2001
    assert script.modify({"comment": "no"}, row, PARTITIONS, modify_uid=0).code == 2001
    assert script.modify({"tres_per_job": "gres:gpu:5"}, row, PARTITIONS).code == 2050


def test_changes_by_a_script_that_runs_before_are_checked_against_the_limits(tmp_path: Path) -> None:
    changed = description(ALICE) | {"comment": "more"}
    assert not script_with(tmp_path, "before").submit(changed, PARTITIONS).accepted
    assert script_with(tmp_path, "after").submit(changed, PARTITIONS).accepted


@pytest.mark.parametrize(("on_error", "accepted"), [("allow", True), ("deny", False)])
@pytest.mark.parametrize("text", [None, "syntax error(", "return slurm.SUCCESS", SITE], ids=str)
def test_a_failing_script_of_the_site_follows_on_error(
    tmp_path: Path, text: str | None, on_error: str, accepted: bool
) -> None:
    script = script_with(tmp_path, "before", text, on_error=on_error)
    verdict = script.submit(description(ALICE) | {"comment": "fail"}, PARTITIONS)
    assert verdict.accepted is accepted
    assert [level for level, _ in verdict.log] == ["error"]
    assert "site.lua" in verdict.log[0][1]


def test_a_script_of_the_site_that_cannot_be_loaded_is_not_installed(tmp_path: Path) -> None:
    file = tmp_path / "site.lua"
    table = compiled([SIZE], "/nonexistent/decisions.log", chain_before=str(file))
    with pytest.raises(OutsideError, match=r"not installed: slurm-gpu: the decision failed: .*site\.lua"):
        try_bundle(table, build_bundle(table))
    file.write_text(SITE)
    try_bundle(table, build_bundle(table))
