"""Measure the cost of shared GPUs in a decision of job_submit.lua: Lua instructions and processor time.

    .venv/bin/python bench/share_decisions.py [--lua 5.1] [--jobs 200] [--rounds 5] [--json]

Instructions do not depend on the machine or its load. Time is processor time within slurm_job_submit, by
Lua's own clock, without Slurm: medians of rounds in which all cases run in turn. bench/submit.py measures
decisions inside slurmctld. Four rules apply to each job, which has one GPU on one node.

alike, varied     equal jobs, so that cached decisions apply; jobs with different time limits
without           without share.lua and shared.lua
unused            with share.lua and shared.lua, for a policy without colocation:
unasked           with colocation:, for a job that does not request sharing
kept              for a job that requests sharing without a known profile
observe, advise, enforce   for a job that requests sharing and shares, by mode

With --json the last line is {"lua": …, "instructions": {"alike": {"without": …, …}, …}, "us": {…}}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments
from bench.lua_modules import copy_without
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript
from tests.policy.compile import compiled
from tests.policy.model import Request, RuleModel
from tests.policy.render import PARTITIONS, description, snapshot

NOW_S = 1000
WARM = 30
"""Number of decisions before the first that is measured."""
RULES = [
    RuleModel("share", "user", limits={"gpus_total": 10**9, "jobs_total": 10**9}),
    RuleModel("together", "group", limits={"gpus_total": 10**9}),
    RuleModel("size", "job", limits={"gpus": 64_000, "walltime": 7 * 86400}),
    RuleModel("days", "job", mode="advise", limits={"walltime": 3 * 86400}),
]
JOB = Request(uid=1001, account="vision", per_job=1, minutes=60)
MODULES = ("share", "shared")
WAYS: dict[str, tuple[str | None, str | None]] = {
    "without": (None, None),
    "unused": (None, None),
    "unasked": ("enforce", None),
    "kept": ("enforce", "share=unheard-of"),
    "observe": ("observe", "share=resnet50"),
    "advise": ("advise", "share=resnet50"),
    "enforce": ("enforce", "share=resnet50"),
}
"""Mode, and the job's comment."""
_OPENING, _ENDING = "local submit = slurm_job_submit\n", "return slurm.SUCCESS\n"
COUNTING = f"""
found = 0
{_OPENING}
function slurm_job_submit(...)
  debug.sethook(function() found = found + 1 end, "", 1)
  local code = submit(...)
  debug.sethook()
  return code
end
{_ENDING}"""
TIMING = f"""
found = 0
{_OPENING}
function slurm_job_submit(...)
  local began = os.clock()
  local code = submit(...)
  found = found + 1000000 * (os.clock() - began)
  return code
end
{_ENDING}"""


def measure(bundle: str, watch: str, job: dict[str, Any], lua: str, jobs: int, *, varied: bool) -> float:
    """Return the mean number of instructions of a decision."""
    watched = bundle.replace("return (function(...)", "local _ = (function(...)") + watch
    script = PolicyScript(watched, lua=lua, writes=True, now=lambda: NOW_S)
    for number in range(WARM + jobs):
        if number == WARM:
            script._lua.globals().found = 0
        if not script.submit(job | ({"time_limit": 1 + number} if varied else {}), PARTITIONS).accepted:
            raise SystemExit("a job was refused")
    return float(script._lua.globals().found) / jobs


def bundle_of(directory: Path, way: str) -> str:
    """Return the script of a policy, and the snapshot with sharing jobs."""
    mode, _ = WAYS[way]
    text = snapshot(1, NOW_S, RULES, [])
    lines = "" if mode is None else "colocation 8\nshare resnet50 2\n"
    (directory / "snapshot.txt").write_text(text.replace("\nend 1", f"\n{lines}end 1"))
    table = compiled(RULES, str(directory / "decisions.log"), snapshot=str(directory / "snapshot.txt"))
    if mode is not None:
        table["colocation"] = {
            "required_groups": [],
            "mode": mode,
            "goal": "throughput",
            "jobs_per_gpu": 2,
            "max_gpu_fraction": 0.75,
            "max_wait_s": 300,
            "why": "Two small jobs fit on one GPU.",
            "planner": "annealing",
        }
    return build_bundle(table, directory / "without" if way == "without" else None)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lua", choices=LUA_VERSIONS, default="5.1", help="version of Lua (default 5.1)")
    parser.add_argument("--jobs", type=arguments.number(1), default=200, help="of each kind (default 200)")
    parser.add_argument("--rounds", type=arguments.number(1), default=5, help="timed rounds (default 5)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()

    counted: dict[str, dict[str, float]] = {}
    timed: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        copy_without(directory / "without", MODULES)
        for manner in ("alike", "varied"):
            rounds: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(1 + options.rounds):
                for way, (_, comment) in WAYS.items():
                    job = description(JOB) | {"script": "#!/bin/sh\n", "name": "train"}
                    job |= {} if comment is None else {"comment": comment}
                    rounds[way].append(
                        measure(
                            bundle_of(directory, way),
                            TIMING if number else COUNTING,
                            job,
                            options.lua,
                            options.jobs,
                            varied=manner == "varied",
                        )
                    )
            counted[manner] = {way: round(some[0]) for way, some in rounds.items()}
            timed[manner] = {way: round(statistics.median(some[1:]), 1) for way, some in rounds.items()}
    for title, found in ((f"instructions of Lua {options.lua}", counted), ("µs of the processor", timed)):
        print(f"{title:<24}" + "".join(f"{way:>10}" for way in WAYS))
        for manner, row in found.items():
            print(f"{manner:<24}" + "".join(f"{row[way]:>10g}" for way in WAYS))
    if options.json:
        print(json.dumps({"lua": options.lua, "instructions": counted, "us": timed}))


if __name__ == "__main__":
    main()
