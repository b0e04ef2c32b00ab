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


MODIFY = "function slurm_job_modify() return slurm.SUCCESS end\n"
# Scripts that slurmctld accepts, and the results of their slurm_job_submit that it ignores.
ACCEPTED = {
    "no final return": ("function slurm_job_submit() return 0 end", ""),
    "final nil": ("function slurm_job_submit() return 0 end\nreturn nil", ""),
    "final text": ("function slurm_job_submit() return 0 end\nreturn '0'", ""),
    "nil": ("function slurm_job_submit(d) if d.comment == 'no' then return 2000 end end", "nil"),
    "true": ("function slurm_job_submit() return true end", "true"),
    "text": ("function slurm_job_submit() return '0' end", ""),
    "_G": ("_G.slurm_job_submit = function() return slurm.SUCCESS end", ""),
    "rawset": ("rawset(_G, 'slurm_job_submit', function() return slurm.SUCCESS end)", ""),
    "strict": (
        "setmetatable(_G, {__index = function(_, name) error(name) end})\n"
        "function slurm_job_submit(d) return tonumber(string.rep('0', 2)) end",
        "",
    ),
    "library": ("dofile('LIBRARY')", ""),
}


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(("text", "ignored"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_script_that_slurmctld_accepts_is_accepted(
    tmp_path: Path, text: str, ignored: str, lua: str
) -> None:
    library = tmp_path / "library.lua"
    library.write_text("function slurm_job_submit() return slurm.SUCCESS end")
    script = script_with(tmp_path, "before", MODIFY + text.replace("LIBRARY", str(library)), lua, "deny")
    verdict = script.submit(description(ALICE), PARTITIONS)
    assert verdict.accepted
    said = f"site.lua: slurm_job_submit returned {ignored} instead of a number; such jobs are accepted"
    assert [(level, said in line) for level, line in verdict.log] == ([("info", True)] if ignored else [])
    assert script.submit(description(ALICE), PARTITIONS).log == ()
    assert script.submit(description(ALICE) | {"tres_per_job": "gres:gpu:5"}, PARTITIONS).code == 2050


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("function slurm_job_submit() end", "has no slurm_job_modify"),
        (MODIFY + "local function slurm_job_submit() end", "has no slurm_job_submit"),
        (MODIFY + "slurm_job_submit = 1", "has no slurm_job_submit"),
        (
            SITE.replace("return slurm.SUCCESS\n", "return slurm.ERROR\n"),
            "returned -1, not slurm.SUCCESS, when",
        ),
    ],
)
def test_a_script_that_slurmctld_does_not_load_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    verdict = script_with(tmp_path, "after", text, on_error="deny").submit(description(ALICE), PARTITIONS)
    assert not verdict.accepted
    assert problem in verdict.log[0][1]


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
