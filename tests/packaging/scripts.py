"""Create the job_submit.lua scripts of the site and of slurm-gpu, and return their results for a job."""

from __future__ import annotations

from pathlib import Path

from slurm_gpu.policy.language.model import Chain, Policy
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .placing import Tree

SITES = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
  slurm.log_user("%s", "asked {name}")
  return {code}
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


def script_of(tree: Tree) -> Path:
    """Return the path that slurmctld reads."""
    return tree.slurm / "job_submit.lua"


def apply(tree: Tree, before: Path | None = None, after: Path | None = None) -> Path:
    """Write a bundle as `policy apply` does, with chained paths as on the host, and return its path."""
    paths = [None if path is None else Path("/") / path.relative_to(tree.root) for path in (before, after)]
    policy = Policy(contact='["chain_before"] = "/evil" x', chain=Chain(before=paths[0], after=paths[1]))
    script = script_of(tree)
    script.write_text(build_bundle(compile_policy(policy, ResolvedNames(), SiteFacts())))
    return script


def submitted(text: str) -> set[tuple[int, tuple[str, ...]]]:
    """Return the answers of a script to a job in all versions of Lua."""
    scripts = [PolicyScript(text, lua=version) for version in LUA_VERSIONS]
    for script in scripts:
        script.set_jobs([])
    partition = {"name": "gpu", "flag_default": 1, "default_time": 60, "max_time": 600}
    verdicts = [script.submit({"user_id": 7}, [partition]) for script in scripts]
    return {(verdict.code, verdict.messages) for verdict in verdicts}


def own_script(tree: Tree, name: str, code: str = "slurm.SUCCESS") -> Path:
    """Write a script of the site that logs its name and returns the code."""
    path = tree.slurm / name
    path.write_text(SITES.format(name="".join(filter(str.isalnum, path.stem)), code=code))
    return path


def keep(tree: Tree, at: str, text: str) -> Path:
    """Write a copy of a script that `policy apply` replaced at a time such as 20261121T183000Z."""
    directory = tree.root / "var" / "lib" / "slurm-gpu" / "policy"
    directory.mkdir(parents=True, exist_ok=True)
    copy = directory / f"job_submit-{at}.lua"
    copy.write_text(text)
    return copy
