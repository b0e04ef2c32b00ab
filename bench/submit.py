"""How many submissions a second slurmctld takes: without a plugin, with a Lua that does nothing, with ours.

    .venv/bin/python bench/submit.py [--queued 0,10000] [--rounds 5] [--jobs 1000] [--submitters 4] [--json]

Brings up a lab of its own (root; the lab must be down). Every measurement starts from the same saved queue of
N pending jobs, and the alternatives take turns:

none     no plugin
noop     a Lua that does nothing: what it costs besides is Slurm's own table of jobs, made anew in each second
looks    the same beside slurm-gpuctld, which looks at the queue and changes nothing
ours     our script by slurm-gpuctld's snapshot: what it costs more than `looks` are our decisions
table    our script by slurm.jobs, without slurm-gpuctld (up to 20,000 queued jobs)

Printed for each: submissions a second and their ratio to `noop` of the same turn (medians of the turns),
slurmctld's own time for a submission (what sdiag tells of REQUEST_SUBMIT_BATCH_JOB), slurmctld's CPU time for
one, and that of the submission that comes first in its second, as every one does where they are rare.
"decision" is the time inside our slurm_job_submit, in slurmctld with one submitter: of jobs that are all
alike, and (varied) of jobs of which each asks for another time. With --json the last line is {"queued": {"0":
{"noop": {"per_s": …, "to_noop": …, "sdiag_us": …, "cpu_us": …, "first_us": …}, …}, …}, "decision_ms": {"0":
{"ours": {"median": …}, …}, …}, …}.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arguments
from own_lab import own_lab
from processes import cost

from lab.cluster import Lab
from lab.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
ALTERNATIVES = ("none", "noop", "looks", "ours", "table")
MOST_BY_TABLE = 20_000
"""A longer queue is not counted by slurm.jobs where there is slurm-gpuctld."""
FIRST_IN_THEIR_SECOND = 5
USER = "alice"
TOMORROW_S = 86400
NOOP = """\
function slurm_job_submit(job_desc, part_list, submit_uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
# Four rules bind each job, and a bundle; none is ever reached.
POLICY = """\
version: 1
groups:
  vision: {accounts: [vision]}
  here: {partitions: [gpu], qos: [normal]}
  everyone: {}
bundles: {train: {gpus: 1, cpus: 32, memory: 900G}, host: {gpus: 0, cpus: 32}}
rules:
  - {id: share, for: vision, per: user, why: bench, limits: {gpus_total: 900000, jobs_total: 900000}}
  - {id: together, for: here, per: group, why: bench, limits: {gpus_total: 900000, jobs_total: 900000}}
  - {id: size, for: everyone, per: job, why: bench, limits: {gpus: 16, walltime: 7d, cpus_per_gpu: 32}}
  - {id: days, for: vision, per: job, why: bench, limits: {walltime: 3d}, mode: advise}
"""
# os.clock is slurmctld's processor time in microseconds: with one submitter, the decision's.
STOPWATCH = """
local inner, out = slurm_job_submit, nil
function slurm_job_submit(...)
  local before = os.clock()
  local code = inner(...)
  local took = os.clock() - before
  local file = io.open("@FILE@", "a")
  file:write(string.format("%.6f\\n", took))
  file:close()
  return code
end
return slurm.SUCCESS
"""


_SUBMIT = re.compile(r"REQUEST_SUBMIT_BATCH_JOB\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)")


@dataclass(frozen=True)
class Turn:
    """One measurement of one alternative."""

    per_s: float
    sdiag_us: float
    cpu_us: float


class Bench:
    """A lab whose slurmctld is started again and again from a saved state."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab = lab
        self.directory = directory
        self.loop = directory / "submit_loop"
        self.saved = directory / "saved"
        self.script = lab.layout.etc / "job_submit.lua"
        self.scripts: dict[str, str] = {"noop": NOOP, "looks": NOOP}
        source = ROOT / "bench" / "submit_loop.c"
        subprocess.run(["cc", "-O2", "-Wall", "-o", self.loop, source, "-lslurm"], check=True)
        directory.chmod(0o755)
        self.conf = lab.layout.slurm_conf.read_text()

    def prepare_scripts(self) -> None:
        """The bundle as `policy apply` makes it, and the same with a stopwatch."""
        policy = self.directory / "policy.yaml"
        policy.write_text(POLICY)
        self.lab.run_as("root", ["slurm-gpu", "policy", "apply", "--replace", str(policy)])
        ours = self.script.read_text()
        end = ours.rindex("return (function(...)")
        watched = ours[:end] + "local _ = (function(...)" + ours[end:].removeprefix("return (function(...)")
        self.scripts |= {
            "ours": ours,
            "table": ours,
            "watched": watched + STOPWATCH.replace("@FILE@", str(self.times_file)),
        }

    @property
    def times_file(self) -> Path:
        """Where the stopwatch writes: slurmctld's own directory."""
        return self.lab.layout.controller_run / "decision_times"

    def fill(self, count: int) -> None:
        """Queue `count` pending jobs, and keep slurmctld's state with them."""
        self.start("none")
        while (missing := count - self.queued()) > 0:
            share = max(missing // 4, 1)
            self.submit(share, min(4, missing))
        self.lab.daemons["slurmctld"].stop(120)
        shutil.rmtree(self.saved, ignore_errors=True)
        shutil.copytree(self.lab.layout.slurmctld, self.saved, copy_function=copy_owned)

    def queued(self) -> int:
        return len(self.lab.output(["squeue", "--noheader", "--format=%i"]).split())

    def start(self, alternative: str, script: str | None = None) -> None:
        """Start slurmctld with this alternative, from the saved state if there is one.

        `script` takes the place of the alternative's own.
        """
        self.lab.daemons["slurm-gpuctld"].stop(10)
        (self.lab.layout.controller_run / "snapshot.txt").unlink(missing_ok=True)
        self.lab.daemons["slurmctld"].stop(120)
        if self.saved.exists():
            shutil.rmtree(self.lab.layout.slurmctld)
            shutil.copytree(self.saved, self.lab.layout.slurmctld, copy_function=copy_owned)
            shutil.chown(self.lab.layout.slurmctld, "slurm", "slurm")
            for path in self.lab.layout.slurmctld.rglob("*"):
                if path.is_dir():
                    shutil.chown(path, "slurm", "slurm")
        plain = "\n".join(line for line in self.conf.splitlines() if not line.startswith("JobSubmitPlugins"))
        self.lab.layout.slurm_conf.write_text(plain + "\n" if alternative == "none" else self.conf)
        if alternative != "none":
            self.script.write_text(self.scripts[alternative if script is None else script])
        self.lab.daemons["slurmctld"].start()
        self.lab.wait_until_idle_nodes()
        if alternative in ("looks", "ours"):
            self.lab.daemons["slurm-gpuctld"].start()
        time.sleep(1.5)  # what slurmctld does after a start is over
        self.submit(1, 1)  # and so is the first look at the whole queue

    def submit(self, each: int, submitters: int, *, varied: bool = False) -> float:
        """Submissions per second of `submitters` processes, over the time in which any was at work."""
        begin = str(int(time.time()) + TOMORROW_S)
        command = [
            "setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups",
            str(self.loop), str(each), begin, *(["varied"] if varied else []),
        ]  # fmt: skip
        processes = [
            subprocess.Popen(command, env=self.lab.environment_of(USER), stdout=subprocess.PIPE, text=True)
            for _ in range(submitters)
        ]
        rows = [process.communicate()[0].split() for process in processes]
        accepted = sum(int(row[2]) for row in rows)
        if accepted != each * submitters:
            raise SystemExit(f"only {accepted} of {each * submitters} submissions were accepted")
        return accepted / (max(float(row[1]) for row in rows) - min(float(row[0]) for row in rows))

    def turn(self, alternative: str, each: int, submitters: int) -> Turn:
        """Start slurmctld with this alternative and measure it."""
        self.start(alternative)
        pid = self.lab.daemons["slurmctld"].pid
        assert pid is not None
        self.lab.run_as("root", ["sdiag", "--reset"])
        before = cost(pid)
        per_s = self.submit(each, submitters)
        cpu_s = cost(pid).cpu_s - before.cpu_s
        return Turn(per_s, self.sdiag_us(), cpu_s * 1e6 / (each * submitters))

    def sdiag_us(self) -> float:
        """slurmctld's time for each submission since sdiag was reset."""
        found = _SUBMIT.search(self.lab.output(["sdiag"]))
        return int(found[2]) / int(found[1]) if found else 0.0

    def first_in_their_second_us(self, alternative: str) -> float:
        """slurmctld's time for a submission before which Slurm makes its table of jobs anew."""
        self.start(alternative)
        times = []
        for _ in range(FIRST_IN_THEIR_SECOND):
            time.sleep(1.1)
            self.lab.run_as("root", ["sdiag", "--reset"])
            self.submit(1, 1)
            times.append(self.sdiag_us())
        return statistics.median(times)

    def decision_times_ms(self, alternative: str, jobs: int, *, varied: bool = False) -> list[float]:
        """Time in our script of each of `jobs` submissions by one submitter."""
        self.start(alternative, "watched")
        self.times_file.unlink(missing_ok=True)
        self.submit(jobs, 1, varied=varied)
        return [float(line) * 1000 for line in self.times_file.read_text().split()]


def copy_owned(source: str, target: str) -> str:
    """Copy a file with its owner: slurmctld is not root."""
    shutil.copy2(source, target)
    owner = Path(source).stat()
    shutil.chown(target, owner.st_uid, owner.st_gid)
    return target


def measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"queued": {}, "decision_ms": {}}
    every_decision: list[float] = []
    for size in options.queued:
        print(f"queueing {size} jobs ...", file=sys.stderr)
        bench.fill(size)
        names = [name for name in ALTERNATIVES if name != "table" or size <= MOST_BY_TABLE]
        turns: dict[str, list[Turn]] = {name: [] for name in names}
        for number in range(options.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                turns[name].append(bench.turn(name, options.jobs, options.submitters))
                print(f"{size:>8} queued  {name:<5} {turns[name][-1].per_s:8.0f}/s", file=sys.stderr)
        results["queued"][str(size)] = {
            name: {
                "per_s": round(statistics.median(turn.per_s for turn in turns[name])),
                "to_noop": round(
                    statistics.median(
                        turn.per_s / noop.per_s for turn, noop in zip(turns[name], turns["noop"], strict=True)
                    ),
                    3,
                ),
                "sdiag_us": round(statistics.median(turn.sdiag_us for turn in turns[name])),
                "cpu_us": round(statistics.median(turn.cpu_us for turn in turns[name])),
                "first_us": round(bench.first_in_their_second_us(name)),
            }
            for name in names
        }
        results["decision_ms"][str(size)] = {}
        for name, varied in (("ours", False), ("ours", True), ("table", False)):
            if name not in names:
                continue
            times = sorted(bench.decision_times_ms(name, options.jobs, varied=varied))
            every_decision += times if name == "ours" else []
            results["decision_ms"][str(size)][name + (" (varied)" if varied else "")] = {
                "median": round(statistics.median(times), 4),
                "p99": round(times[int(len(times) * 0.99)], 4),
                "max": round(times[-1], 3),
            }
    results["decision_ms_median"] = round(statistics.median(every_decision), 4)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Submissions per second, with and without our job_submit.lua."
    )
    parser.add_argument(
        "--queued", type=arguments.numbers, default="0,10000", help="sizes of the queue (default 0,10000)"
    )
    parser.add_argument(
        "--rounds", type=arguments.number(1), default=5, help="turns of each alternative (default 5)"
    )
    parser.add_argument(
        "--jobs", type=arguments.number(1), default=1000, help="jobs of each submitter (default 1000)"
    )
    parser.add_argument(
        "--submitters", type=arguments.number(1), default=4, help="processes that submit (default 4)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()

    with own_lab() as (lab, directory):
        bench = Bench(lab, directory)
        bench.prepare_scripts()
        results = measure(bench, options)

    for size, rows in results["queued"].items():
        print(f"{size} queued:")
        for name, row in rows.items():
            print(
                f"  {name:<5} {row['per_s']:>6}/s  {row['to_noop']:6.3f} of noop  "
                f"slurmctld {row['sdiag_us']:>6} us, CPU {row['cpu_us']:>6} us, first {row['first_us']:>7} us"
            )
        for name, times in results["decision_ms"][size].items():
            figures = f"median {times['median']:.3f} ms, p99 {times['p99']:.2f} ms, max {times['max']:.1f} ms"
            print(f"  decision, {name:<13} {figures}")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        sys.exit(str(error))
