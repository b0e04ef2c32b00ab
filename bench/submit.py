"""Measure submissions per second of slurmctld without a plugin, with an empty Lua script, and with ours.

    .venv/bin/python bench/submit.py [--queued 0,10000] [--rules 4] [--rounds 8] [--turns 2] [--json]

The benchmark starts its own lab (requires root; no other lab may be up). Every round starts slurmctld from
the same saved queue of N pending jobs. The alternatives run in turn, with `jobs` jobs per submitter:

none     no plugin (slurmctld is restarted for it)
noop     an empty Lua script: its cost is Slurm's own table of jobs, which is rebuilt every second
polled   the same with slurm-gpuctld, which reads the queue and changes nothing
ours     our script with slurm-gpuctld's snapshot: the difference from `polled` is the cost of decisions
table    our script with slurm.jobs, without slurm-gpuctld (up to 20,000 queued jobs)

All alternatives use one script, which ignores jobs with the name "noop". Nothing is loaded or started between
turns, so a longer queue or other load affects all alternatives equally.

Printed for each: submissions per second; their ratio to `noop`, and of `ours` to `polled`, in the same turn.
Ratios are means of all turns with 95 % intervals. Also printed: slurmctld's own time for a submission
(REQUEST_SUBMIT_BATCH_JOB in sdiag), its CPU time, and the ratio of the CPU time to `noop`. "First" is
slurmctld's time for the first submission in a second, the usual case for rare submissions. "decision" is the
time inside our slurm_job_submit, in slurmctld with one submitter: for equal jobs, and (varied) for jobs with
different time limits. With --rules 600, 596 rules for 298 other accounts are added to the four that apply to
each job. The time of `policy apply` is always printed. With --json the last line is {"queued": {"0":
{"none": …, "noop": …, …}, …}, "turns": {"0": {"noop": {"to_noop": …, "to_noop_95": […, …], "sdiag_us": …,
"cpu_us": …, "cpu_to_noop": …, "cpu_to_noop_95": […, …], "first_us": …}, …}, …}, "decision_ms": {"0": {"ours":
{"median": …}, …}, …}, "decision_ms_median": …, "apply_s": …}; queued in submissions a second, and `ours` has
to_polled and to_polled_95, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments
from bench.own_lab import own_lab
from bench.processes import cost
from lab.cluster import Lab
from lab.errors import LabError
from lab.polling import wait_for

ROOT = Path(__file__).resolve().parent.parent
IN_TURN = ("noop", "table", "polled", "ours")
"""The order of turns, followed by its reverse: slurm-gpuctld then starts and stops as rarely as possible."""
MOST_BY_TABLE = 20_000
"""The longest queue that our script counts with slurm.jobs if slurm-gpuctld is in use."""
FIRST_IN_THEIR_SECOND = 5
WITH_POLLS = ("polled", "ours")
"""Alternatives with slurm-gpuctld."""
DOES_NOTHING = ("noop", "polled")
LEFT_OUT = {
    "none": ("JobSubmitPlugins",),
    # If jobs may preempt others, a submission takes longer with a longer queue.
    "filling": ("JobSubmitPlugins", "PreemptType", "PreemptMode"),
}
"""Lines of slurm.conf that an alternative omits."""
BY_THE_CLOCK_S = 5.0
"""A turn begins at a random moment within this number of seconds."""
DECISIONS = 1000
"""The number of decisions that are timed one by one."""
USER = "alice"
TOMORROW_S = 86400
# Four rules and a bundle apply to each job; no limit is ever reached.
POLICY = """\
version: 1
mode: enforce
groups:
  vision: {accounts: [vision]}
  here: {partitions: [gpu], qos: [normal]}
  everyone: {}
bundles: {train: {gpus: 1, cpus: 32, memory: 900G, mode: advise}, host: {gpus: 0, cpus: 32, mode: advise}}
rules:
  - {id: share, for: vision, per: user, why: bench, limits: {gpus_total: 900000, jobs_total: 900000}}
  - {id: together, for: here, per: group, why: bench, limits: {gpus_total: 900000, jobs_total: 900000}}
  - {id: size, for: everyone, per: job, why: bench, limits: {gpus: 16, walltime: 7d, cpus_per_gpu: 32}}
  - {id: days, for: vision, per: job, why: bench, limits: {walltime: 3d}, mode: advise}
"""
# Further rules: two for each of the other accounts.
MORE_RULES = """\
  - {{id: size{0}, for: other{0}, per: job, why: bench, limits: {{gpus: 8, walltime: 2d}}}}
  - {{id: share{0}, for: other{0}, per: user, why: bench, limits: {{gpus_total: 900000, jobs_total: 900000}}}}
"""
# Appended to our script: ignore jobs named "noop".
SWITCH = """
local ours = slurm_job_submit
function slurm_job_submit(job_desc, ...)
  if job_desc.name == "noop" then
    return slurm.SUCCESS
  end
  return ours(job_desc, ...)
end
return slurm.SUCCESS
"""
# Appended to our script: record the time of each decision. os.clock measures slurmctld's processor time; with
# one submitter, this is the time of the decision.
STOPWATCH = """
local inner = slurm_job_submit
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
    """A lab whose slurmctld is started repeatedly from a saved state."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab = lab
        self.directory = directory
        self.loop = directory / "submit_loop"
        self.saved = directory / "saved"
        self.script = lab.layout.etc / "job_submit.lua"
        self.scripts: dict[str, str] = {}
        source = ROOT / "bench" / "submit_loop.c"
        subprocess.run(["cc", "-O2", "-Wall", "-o", self.loop, source, "-lslurm"], check=True)
        directory.chmod(0o755)
        # Slurm's default scheduling; that of the lab schedules at each submission.
        self.conf = without(lab.layout.slurm_conf.read_text(), "SchedulerParameters")
        self.polling = False

    def prepare_scripts(self, n_rules: int = 4) -> float:
        """Write the bundle by `policy apply`, with an addition for the benchmark; return how long it took."""
        policy = self.directory / "policy.yaml"
        policy.write_text(policy_of(n_rules))
        if others := other_accounts(n_rules):
            add = ["sacctmgr", "--immediate", "add"]
            self.lab.run_as("root", [*add, "account", ",".join(others)])
            self.lab.run_as("root", [*add, "user", USER, f"account={','.join(others)}"])
        began = time.monotonic()
        self.lab.run_as("root", ["slurm-gpu", "policy", "apply", "--replace", str(policy)])
        apply_s = time.monotonic() - began
        ours = self.script.read_text()
        end = ours.rindex("return (function(...)")
        bundle = ours[:end] + "local _ = (function(...)" + ours[end:].removeprefix("return (function(...)")
        self.scripts = {
            "switched": bundle + SWITCH,
            "watched": bundle + STOPWATCH.replace("@FILE@", str(self.times_file)),
        }
        return apply_s

    @property
    def times_file(self) -> Path:
        """Return the output file of the timer, in slurmctld's own directory."""
        return self.lab.layout.controller_run / "decision_times"

    def fill(self, count: int) -> None:
        """Queue `count` pending jobs, and keep slurmctld's state with them."""
        self.start("filling")
        while (missing := count - self.queued()) > 0:
            share = max(missing // 4, 1)
            self.submit(share, min(4, missing), "filling")
        self.lab.daemons["slurmctld"].stop(120)
        replace_tree(self.lab.layout.slurmctld, self.saved)

    def queued(self) -> int:
        return len(self.lab.output(["squeue", "--noheader", "--format=%i"]).split())

    def start(self, alternative: str, script: str = "switched") -> None:
        """Start slurmctld, from the saved state if there is one, and switch to this alternative."""
        self.lab.daemons["slurm-gpuctld"].stop(10)
        self.polling = False
        self.lab.daemons["slurmctld"].stop(120)
        if self.saved.exists():
            replace_tree(self.saved, self.lab.layout.slurmctld)
        self.lab.layout.slurm_conf.write_text(without(self.conf, *LEFT_OUT.get(alternative, ())))
        self.script.write_text(self.scripts[script])
        self.lab.daemons["slurmctld"].start()
        self.lab.wait_until_idle_nodes()
        time.sleep(1.5)  # slurmctld has finished its work after a start
        self.switch(alternative)

    def switch(self, alternative: str) -> None:
        """Switch to this alternative: start or stop slurm-gpuctld, and wait for the first decision."""
        watcher = self.lab.daemons["slurm-gpuctld"]
        snapshot = self.lab.layout.controller_run / "snapshot.txt"
        is_polled = alternative in WITH_POLLS
        if is_polled != self.polling:
            self.polling = is_polled
            if (pid := watcher.pid) is not None:
                os.kill(pid, signal.SIGCONT if is_polled else signal.SIGSTOP)
            elif is_polled:
                watcher.start()
            snapshot.unlink(missing_ok=True)
            if is_polled:
                wait_for(snapshot.exists, 60, "slurm-gpuctld reads the queue")
        # Periodic work of slurmctld, such as saving its state, affects all alternatives equally.
        time.sleep(random.uniform(0, BY_THE_CLOCK_S))
        self.submit(1, 1, alternative)

    def submit(self, each: int, submitters: int, alternative: str, *, varied: bool = False) -> float:
        """Return the submissions per second of all `submitters` processes while at least one was working."""
        begin = str(int(time.time()) + TOMORROW_S)
        command = [
            "setpriv",
            f"--reuid={USER}",
            f"--regid={USER}",
            "--init-groups",
            str(self.loop),
            str(each),
            begin,
            "noop" if alternative in DOES_NOTHING else "bench",
            *(["varied"] if varied else []),
        ]
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
        """Measure the current alternative."""
        pid = self.lab.daemons["slurmctld"].pid
        assert pid is not None
        self.lab.run_as("root", ["sdiag", "--reset"])
        before = cost(pid)
        per_s = self.submit(each, submitters, alternative)
        cpu_s = cost(pid).cpu_s - before.cpu_s
        return Turn(per_s, self.sdiag_us(), cpu_s * 1e6 / (each * submitters))

    def sdiag_us(self) -> float:
        """Return slurmctld's time for each submission since sdiag was reset."""
        found = _SUBMIT.search(self.lab.output(["sdiag"]))
        return int(found[2]) / int(found[1]) if found else 0.0

    def first_in_their_second_us(self, alternative: str) -> float:
        """Return slurmctld's time for a submission before which Slurm rebuilds its table of jobs."""
        self.start(alternative)
        times = []
        for _ in range(FIRST_IN_THEIR_SECOND):
            time.sleep(1.1)
            self.lab.run_as("root", ["sdiag", "--reset"])
            self.submit(1, 1, alternative)
            times.append(self.sdiag_us())
        return statistics.median(times)

    def decision_times_ms(self, alternative: str, jobs: int, *, varied: bool = False) -> list[float]:
        """Return the time in the script of each of `jobs` submissions by one submitter."""
        self.start(alternative, "watched")
        self.times_file.unlink(missing_ok=True)
        self.submit(jobs, 1, alternative, varied=varied)
        return [float(line) * 1000 for line in self.times_file.read_text().split()]


def other_accounts(n_rules: int) -> list[str]:
    """Return the accounts for which rules are added to the four of POLICY."""
    return [f"other{number}" for number in range((n_rules - 4) // 2)]


def policy_of(n_rules: int) -> str:
    """Return POLICY with `n_rules` rules."""
    others = other_accounts(n_rules)
    groups = "".join(f"  {name}: {{accounts: [{name}]}}\n" for name in others)
    manages = 'manages: {accounts: ["other*"]}\n' if others else ""
    policy = POLICY.replace("bundles:", f"{groups}{manages}bundles:")
    return policy + "".join(MORE_RULES.format(number) for number in range(len(others)))


def without(conf: str, *names: str) -> str:
    """Return slurm.conf without the lines of these names."""
    return "".join(line for line in conf.splitlines(keepends=True) if line.partition("=")[0] not in names)


def replace_tree(source: Path, target: Path) -> None:
    """Make `target` a copy of `source`, with its owners: two files and a directory for each queued job."""
    subprocess.run(["rm", "-rf", target], check=True)
    subprocess.run(["cp", "--archive", "--no-target-directory", source, target], check=True)


def spread(mean: float, interval: list[float]) -> str:
    """Return the mean with its error in brackets."""
    return f"{mean:.3f}" + (f" (±{interval[1] - mean:.3f})" if interval else "")


def ratio(of: list[Turn], to: list[Turn], value: str = "per_s") -> tuple[float, list[float]]:
    """Return the ratio of the mean submissions per second, or of the means of another value.

    The mean of the turns' ratios would be too large if turns differ. The 95 % interval is that of the ratio
    estimator: its error is the standard error of `of` − ratio × `to` in the same turn, divided by the mean of
    `to`.
    """
    ours, others = ([getattr(turn, value) for turn in turns] for turns in (of, to))
    found = sum(ours) / sum(others)
    if len(ours) < 2:
        return round(found, 3), []
    left = [one - found * other for one, other in zip(ours, others, strict=True)]
    margin = 1.96 * statistics.stdev(left) / len(left) ** 0.5 / statistics.fmean(others)
    return round(found, 3), [round(found - margin, 3), round(found + margin, 3)]


def take_turns(bench: Bench, size: int, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Return the measurements of each alternative, in order."""
    names = [name for name in IN_TURN if name != "table" or size <= MOST_BY_TABLE]
    turns: dict[str, list[Turn]] = {name: [] for name in ("none", *names)}

    def one(name: str) -> None:
        turns[name].append(bench.turn(name, options.jobs, options.submitters))
        print(f"{size:>8} queued  {name:<5} {turns[name][-1].per_s:8.0f}/s", file=sys.stderr)

    for number in range(options.rounds):
        bench.start("none")
        for _ in range(options.turns):
            one("none")
        bench.start(names[0])
        for turn in range(options.turns):
            for name in names if (number + turn) % 2 == 0 else reversed(names):
                bench.switch(name)
                one(name)
    return turns


def measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"queued": {}, "turns": {}, "decision_ms": {}}
    every_decision: list[float] = []
    for size in options.queued:
        print(f"queueing {size} jobs ...", file=sys.stderr)
        bench.fill(size)
        turns = take_turns(bench, size, options)
        rates = {name: round(statistics.median(turn.per_s for turn in turns[name])) for name in turns}
        rows: dict[str, dict[str, Any]] = {name: {} for name in turns}
        for name, of_it in turns.items():
            row = rows[name]
            row["to_noop"], row["to_noop_95"] = ratio(of_it, turns["noop"])
            row["cpu_to_noop"], row["cpu_to_noop_95"] = ratio(of_it, turns["noop"], "cpu_us")
            if name == "ours":
                row["to_polled"], row["to_polled_95"] = ratio(of_it, turns["polled"])
            row["sdiag_us"] = round(statistics.fmean(turn.sdiag_us for turn in of_it))
            row["cpu_us"] = round(statistics.fmean(turn.cpu_us for turn in of_it))
            row["first_us"] = round(bench.first_in_their_second_us(name))
        results["queued"][str(size)], results["turns"][str(size)] = rates, rows
        results["decision_ms"][str(size)] = {}
        for name, varied in (("ours", False), ("ours", True), ("table", False)):
            if name not in rows:
                continue
            times = sorted(bench.decision_times_ms(name, DECISIONS, varied=varied))
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
        "--rules", type=arguments.number(4), default=4, help="rules of the policy, even (default 4)"
    )
    parser.add_argument(
        "--rounds", type=arguments.number(1), default=8, help="starts from the saved queue (default 8)"
    )
    parser.add_argument(
        "--turns", type=arguments.number(1), default=2, help="turns per alternative and round (default 2)"
    )
    parser.add_argument(
        "--jobs", type=arguments.number(1), default=100, help="jobs per submitter and turn (default 100)"
    )
    parser.add_argument(
        "--submitters", type=arguments.number(1), default=4, help="processes that submit (default 4)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()

    with own_lab() as (lab, directory):
        bench = Bench(lab, directory)
        apply_s = bench.prepare_scripts(options.rules)
        results = measure(bench, options) | {"apply_s": round(apply_s, 2)}

    print(f"apply of {options.rules} rules: {apply_s:.2f} s")
    for size, rows in results["turns"].items():
        print(f"{size} queued:")
        for name, row in rows.items():
            print(
                f"  {name:<5} {results['queued'][size][name]:>6}/s  "
                f"{spread(row['to_noop'], row['to_noop_95'])} of noop  "
                f"slurmctld {row['sdiag_us']:>6} us, CPU {row['cpu_us']:>6} us, "
                f"{spread(row['cpu_to_noop'], row['cpu_to_noop_95'])} of noop, first {row['first_us']:>7} us"
            )
        print(f"  ours {spread(rows['ours']['to_polled'], rows['ours']['to_polled_95'])} of polled")
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
