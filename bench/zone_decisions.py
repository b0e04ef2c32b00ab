"""Measure the cost of zones in a decision of job_submit.lua, in instructions of Lua's virtual machine.

    .venv/bin/python bench/zone_decisions.py [--lua 5.1] [--jobs 100] [--json]

Instructions do not depend on the machine or its load; bench/submit.py measures milliseconds inside slurmctld.
Four rules apply to each job; there are 48 nodes in three zones.

single, multi     a job on one node, a job on two
alike, varied     equal jobs, so that cached decisions apply; jobs with different time limits
without           without place.lua
none              with place.lua, but without zones
observe, enforce  with place.lua and zones, by mode

With --json the last line is {"lua": …, "instructions": {"single alike": {"without": …, …}, …}}.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments
from bench.lua_modules import copy_without
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript
from tests.policy.compile import compiled
from tests.policy.model import Request, RuleModel
from tests.policy.render import PARTITIONS, description, snapshot
from tests.policy.zonecluster import ZONES, Cluster, make_node

NOW_S = 1000
WARM = 30
"""Number of decisions before the first that is measured."""
RULES = [
    RuleModel("share", "user", limits={"gpus_total": 10**9, "jobs_total": 10**9}),
    RuleModel("together", "group", limits={"gpus_total": 10**9}),
    RuleModel("size", "job", limits={"gpus": 64_000, "walltime": 7 * 86400}),
    RuleModel("days", "job", mode="advise", limits={"walltime": 3 * 86400}),
]
JOBS = {
    "single": Request(uid=1001, account="vision", per_job=1, minutes=60),
    "multi": Request(uid=1001, account="vision", per_node=4, nodes=2, minutes=60),
}
WAYS = {"without": None, "none": None, "observe": "observe", "enforce": "enforce"}
CLUSTER = Cluster(
    tuple(make_node(f"{zone}-{n}", zone, ["a100"], ["gpu", "long"]) for zone in ZONES for n in range(16))
)
COUNTING = """
instructions = 0
local submit = slurm_job_submit
function slurm_job_submit(...)
  debug.sethook(function() instructions = instructions + 1 end, "", 1)
  local code = submit(...)
  debug.sethook()
  return code
end
return slurm.SUCCESS
"""


def count(bundle: str, job: Request, lua: str, jobs: int, *, varied: bool) -> float:
    """Return the mean number of instructions of a decision."""
    watched = bundle.replace("return (function(...)", "local _ = (function(...)") + COUNTING
    script = PolicyScript(watched, lua=lua, writes=True, now=lambda: NOW_S)
    for number in range(WARM + jobs):
        if number == WARM:
            script._lua.globals().instructions = 0
        more = {"time_limit": 1 + number} if varied else {}
        if not script.submit(description(job) | more, PARTITIONS).accepted:
            raise SystemExit("a job was refused")
    return float(script._lua.globals().instructions) / jobs


def main() -> None:
    parser = argparse.ArgumentParser(description="Instructions of a decision, with and without zones.")
    parser.add_argument("--lua", choices=LUA_VERSIONS, default="5.1", help="version of Lua (default 5.1)")
    parser.add_argument("--jobs", type=arguments.number(1), default=100, help="of each kind (default 100)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()

    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        without = directory / "without"
        copy_without(without, ["place"])
        for kind, job in JOBS.items():
            for manner in ("alike", "varied"):
                row = found[f"{kind} {manner}"] = {}
                for way, mode in WAYS.items():
                    text = snapshot(1, NOW_S, RULES, [])
                    lines = "".join(f"{line}\n" for line in (CLUSTER.lines(mode) if mode else []))
                    (directory / "snapshot.txt").write_text(text.replace("\nend 1", f"\n{lines}end 1"))
                    table = compiled(
                        RULES,
                        str(directory / "decisions.log"),
                        snapshot=str(directory / "snapshot.txt"),
                        partition_gpus={"gpu": 4, "long": 4},
                    )
                    bundle = build_bundle(table, without if way == "without" else None)
                    row[way] = round(count(bundle, job, options.lua, options.jobs, varied=manner == "varied"))
    print(f"{'instructions of Lua ' + options.lua:<24}" + "".join(f"{way:>10}" for way in WAYS))
    for name, row in found.items():
        print(f"{name:<24}" + "".join(f"{row[way]:>10.0f}" for way in WAYS))
    if options.json:
        print(json.dumps({"lua": options.lua, "instructions": found}))


if __name__ == "__main__":
    main()
