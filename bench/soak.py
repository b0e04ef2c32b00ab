"""Run steady jobs on a cluster while daemons are killed, restarted and reconfigured, and clocks are set.

    .venv/bin/python bench/soak.py [--minutes 120] [--seed N] [--workers N] [--json] [--keep]

The benchmark starts its own lab (requires root; no other lab may be up). Daemons of Slurm, slurm-gpu and the
database are killed, restarted, or stopped for up to a minute at any time; workers of slurm-gpudbd are killed.
Slurm reads its files again, and the policy is applied again. The wall clock of one node at a time, or of
slurm-gpudbd's host, is wrong by 1.5 s to 4 min for up to a minute. At the end each job with GPUs must be
recorded once on each of them for its whole allocation, by Slurm's accounting and the hooks' own timestamps.
Records of completely observed jobs must agree with the simulated GPUs. Leaks are judged by the longest life
of each daemon (soak_leaks.py): one of each kind runs through the second half. Nodes that Slurm drains, for
example after a step that it could not kill, are resumed and reported with the reason, which must not be a
hook. Progress goes to stderr every ten minutes.

The clock of this machine is never set (lab/clocks.py). The wrong clocks apply to slurm-gpud, its hooks and
GPUs, and to slurm-gpudbd and the Slurm commands that it runs, but not to Slurm's daemons. Larger errors are
not tested: above five minutes MUNGE rejects all credentials and Slurm starts no job.

With --json the last line is {"jobs": …, "lost": …, "twice": …, "allocated_otherwise": …, …}. The exit code
is 1 if a job was lost, recorded twice or recorded for a time other than its allocation, if a hook drained a
node, or if a daemon leaks.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from bench import arguments
from bench.soak_leaks import UsageSample, leaking, leaks
from bench.soak_records import judge
from lab.clocks import DATABASE_HOST
from lab.cluster import Lab
from lab.errors import LabError
from lab.options import Options
from lab.polling import wait_for

OURS = "slurm-gpu"
JOBS_AT_ONCE = 12
SAMPLE_S = 5.0
PROGRESS_S = 600.0
SPARED = frozenset({"slurm-gpud-n1", "slurm-gpudbd", "slurm-gpuctld"})
"""Daemons that are spared in the second half, because a leak is found only in a long life."""
OUTAGE_S = 60.0
ENDED_WITHIN_S = 300.0
STEPS_S = (1.53, 15.31, 60.07, 239.9)
"""Steps of the clock. With multiples of the simulated GPUs' tick, timestamps around a step would coincide."""
WRONG_CLOCK_S = 60.0
"""The longest time in seconds for which a clock is wrong."""
_MIB = 1 << 20
WRONG = ("lost", "twice", "allocated_otherwise", "over_limit")
"""Kinds of errors in the records of jobs (bench/soak_records.py)."""


@dataclass
class Soak:
    """One run of the soak."""

    lab: Lab
    dice: random.Random
    jobs: dict[int, int] = field(default_factory=dict)
    """GPUs by job ID; shards count as one."""
    down: dict[str, float] = field(default_factory=dict)
    """Stopped daemons, and when they start again."""
    faults: Counter[str] = field(default_factory=Counter)
    lives: dict[tuple[str, int], list[UsageSample]] = field(default_factory=lambda: defaultdict(list))
    wrong: tuple[str, float] | None = None
    """The host whose clock is wrong, and the seconds that correct it."""
    steps: Counter[str] = field(default_factory=Counter)
    """The clock steps, by clock and size."""
    taken_out: Counter[str] = field(default_factory=Counter)
    """Nodes that Slurm took out of service, by the reason that it gave."""
    history: list[tuple[float, str]] = field(default_factory=list)
    """Times (epoch seconds) of faults."""
    refused: int = 0
    spares_some: bool = False
    disk: list[tuple[float, float]] = field(default_factory=list)
    """Times in seconds, and MiB of files of slurm-gpud and slurm-gpuctld."""

    def run(self, seconds: float) -> None:
        """Submit jobs, inject faults, and measure."""
        began = time.monotonic()
        job_at = fault_at = clock_at = sample_at = began
        print_at = began + PROGRESS_S
        while (now := time.monotonic()) < began + seconds:
            self.spares_some = now > began + seconds / 2
            self._start_daemons(now)
            if now >= job_at:
                job_at = now + self.dice.uniform(0.5, 3.0)
                self._submit()
            if now >= fault_at:
                fault_at = now + self.dice.uniform(5.0, 25.0)
                self._inject_fault(now)
            if now >= clock_at:
                clock_at = now + self._set_clock()
            if now >= sample_at:
                sample_at = now + SAMPLE_S
                self.sample(now)
                self._resume_nodes()
            if now >= print_at:
                print_at += PROGRESS_S
                self._print_progress((now - began) / 60)
            time.sleep(0.1)  # sets the rate of faults, and waits for no event
        for name in list(self.down):
            self.down[name] = 0.0
        self._start_daemons(time.monotonic())
        if self.wrong is not None:
            self._set_clock()

    def _submit(self) -> None:
        queue = self._quietly(["squeue", "-h", "-r", "-o", "%i"], timeout_s=10)
        if queue is None or len(queue.split()) >= JOBS_AT_ONCE:
            return
        util, seconds = self.dice.randrange(101), self.dice.uniform(1, 40)
        kind, gpus = self.dice.choice(
            [
                ("--gpus=1", 1),
                ("--gpus=2 --nodes=1", 2),
                ("--gres=shard:1", 1),
                ("--nodes=2 --gpus-per-node=1", 2),
            ]
        )
        run = "srun simgpu" if "nodes=2" in kind else "exec simgpu"
        script = f"#!/bin/sh\n{run} --util {util} --mem-mib 2000 --seconds {seconds:.1f}\n"
        argv = ["sbatch", "--parsable", "--time=5", "--no-requeue", *kind.split()]
        output = self._quietly(argv, user="alice", stdin=script, timeout_s=20)
        if output is None:
            self.refused += 1
        else:
            self.jobs[int(output.strip().partition(";")[0])] = gpus

    def _quietly(self, argv: Sequence[str], user: str = "root", **given: Any) -> str | None:
        """Return the output of a command; None if it fails, for example while a daemon is down."""
        try:
            return self.lab.run_as(user, argv, **given).stdout
        except (LabError, subprocess.TimeoutExpired):
            return None

    def _inject_fault(self, now: float) -> None:
        names = [name for name in self.lab.daemons if name not in self.down and name != "munged"]
        kinds: list[tuple[str, Callable[[], None]]] = [
            ("kill", lambda: self._stop_daemon(now, kill=True, most_s=8.0)),
            ("restart", lambda: self._stop_daemon(now, kill=False, most_s=0.0)),
            ("outage", lambda: self._stop_daemon(now, kill=self.dice.random() < 0.5, most_s=OUTAGE_S)),
            ("database outage", lambda: self._stop_daemon(now, kill=True, most_s=OUTAGE_S, name="mariadb")),
            ("reconfigure", lambda: self._run_command(["scontrol", "reconfigure"])),
            ("policy apply", lambda: self._run_command(["slurm-gpu", "policy", "apply"])),
        ]
        weights = [6, 4, 2, 1, 1, 1]
        if self.lab.options.database_workers:
            kinds.append(("worker killed", self._kill_worker))
            weights.append(2)
        if not names:
            return
        kind, act = self.dice.choices(kinds, weights)[0]
        self.faults[kind] += 1
        if kind in ("reconfigure", "policy apply"):
            self._note(kind)
        act()

    def _run_command(self, argv: Sequence[str]) -> None:
        self._quietly(argv, timeout_s=30)

    def _kill_worker(self) -> None:
        """Kill a worker of slurm-gpudbd; in the second half workers are spared, like slurm-gpudbd."""
        pid = self.lab.daemons["slurm-gpudbd"].pid
        try:
            workers = psutil.Process(pid).children() if pid is not None and not self.spares_some else []
            for worker in workers[:1]:
                worker.kill()
                self._note("a worker of slurm-gpudbd is killed")
        except psutil.Error:
            return  # slurm-gpudbd has just ended

    def _stop_daemon(self, now: float, *, kill: bool, most_s: float, name: str | None = None) -> None:
        # Daemons of slurm-gpu fail more often than the others.
        spared = SPARED if self.spares_some else frozenset[str]()
        names = sorted(set(self.lab.daemons) - set(self.down) - spared - {"munged"})
        weights = [4 if one.startswith(OURS) else 1 for one in names]
        chosen = self.dice.choices(names, weights)[0] if name is None else name
        if chosen in self.down:
            return
        daemon = self.lab.daemons[chosen]
        self._note(f"{chosen} is {'killed' if kill else 'stopped'}")
        (daemon.kill9 if kill else daemon.stop)()
        self.faults[f"{chosen} down"] += 1
        self.down[chosen] = now + self.dice.uniform(0.0, most_s)

    def _set_clock(self) -> float:
        """Set a clock wrong, or correct the wrong one; return the seconds until the next change."""
        if self.wrong is None:
            # The clock of slurm-gpudbd's host is as likely as that of any node.
            host = self.dice.choice([*self.lab.nodes, DATABASE_HOST])
            by_s = self.dice.choice(STEPS_S) * self.dice.choice((1, -1))
            self.wrong, stays_s = (host, -by_s), self.dice.uniform(2.0, WRONG_CLOCK_S)
        else:
            (host, by_s), self.wrong, stays_s = self.wrong, None, self.dice.uniform(2.0, WRONG_CLOCK_S / 2)
        self.lab.step_clock(host, by_s)
        self._note(f"the clock of {host} is set by {by_s:+g} s")
        self.steps[f"{'node' if host in self.lab.nodes else host} {by_s:+g} s"] += 1
        return stays_s

    def _start_daemons(self, now: float) -> None:
        for name in [name for name, at_s in self.down.items() if at_s <= now]:
            del self.down[name]
            self.lab.daemons[name].start(wait=False)
            self._note(f"{name} is started")

    def _resume_nodes(self) -> None:
        """Resume nodes that are drained or down, except those that only do not respond."""
        output = self._quietly(["sinfo", "-h", "-N", "-o", "%N|%t|%E"], timeout_s=10) or ""
        for node, state, reason in {tuple(line.split("|", 2)) for line in output.splitlines()}:
            if state.startswith(("dr", "down")) and not reason.startswith(("none", "Not responding")):
                self.taken_out[reason] += 1
                self._run_command(["scontrol", "update", f"nodename={node}", "state=resume"])

    def _note(self, what: str) -> None:
        self.history.append((time.time(), what))

    def _print_progress(self, minutes: float) -> None:
        faults = sum(n for kind, n in self.faults.items() if not kind.endswith(" down"))
        output = f"{minutes:.0f} minutes: {len(self.jobs)} jobs, {faults} faults"
        print(f"{output}, nodes taken out {dict(self.taken_out)}", file=sys.stderr, flush=True)

    def sample(self, now: float) -> None:
        """Sample the usage of each daemon of slurm-gpu."""
        for name, daemon in self.lab.daemons.items():
            if name.startswith(OURS) and (pid := daemon.pid) is not None:
                try:
                    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
                    rss = sum(process.memory_info().rss for process in family) / _MIB
                    files = family[0].num_fds()
                except psutil.Error:
                    continue  # it has just ended
                self.lives[name, pid].append(UsageSample(now, rss, files))
        self.disk.append((now, _disk_mib(self.lab)))

    def settle(self) -> None:
        """Start all daemons, and wait for the end of all jobs."""
        for daemon in self.lab.daemons.values():
            daemon.start()

        def none_left() -> bool:
            self._resume_nodes()
            return self._quietly(["squeue", "-h"], timeout_s=20) == ""

        wait_for(none_left, ENDED_WITHIN_S, "all jobs end", lambda: self._quietly(["squeue"]) or "", 1.0)


def _disk_mib(lab: Lab) -> float:
    """Return the size of all files of slurm-gpud and slurm-gpuctld; files that vanish count as 0."""
    total = 0
    for node in lab.nodes:
        for path in lab.layout.node(node).state.rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except OSError:
                continue
    return total / _MIB


def logged_clock_steps(lab: Lab) -> int:
    """Return how often slurm-gpud logged a clock step; it logs the sum of several within a minute."""
    logs = [lab.daemons[f"slurm-gpud-{node}"].log for node in lab.nodes]
    return sum(log.read_text(errors="replace").count("the wall clock was set") for log in logs)


def main() -> int:
    """Run the soak; return 1 if a job was lost or recorded wrongly, or if a daemon leaks."""
    parser = argparse.ArgumentParser(description="Run jobs in a lab while daemons fail.")
    parser.add_argument("--minutes", type=arguments.seconds(0.1), default=120.0, help="default 120")
    parser.add_argument("--seed", type=int, default=1, help="seed of all faults (default 1)")
    parser.add_argument("--workers", type=int, default=0, help="of slurm-gpudbd (default 0)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--keep", action="store_true", help="leave the lab up for inspection")
    options = parser.parse_args()
    lab = Lab(options=Options(native_limits=False, own_clocks=True, database_workers=options.workers))
    if any(lab.status().values()):
        raise SystemExit("a lab is up; take it down first: lab/down")
    try:
        lab.up()
        soak = Soak(lab, random.Random(options.seed))
        soak.run(options.minutes * 60)
        soak.settle()
        values = judge(lab, soak.jobs, soak.history) | {"clock_steps_logged": logged_clock_steps(lab)}
        soak.sample(time.monotonic())
    finally:
        if not options.keep:
            lab.down()
    values |= {"refused": soak.refused, "faults": dict(sorted(soak.faults.items()))}
    values |= {"nodes_taken_out": dict(soak.taken_out)}
    values |= {"clock_steps": dict(sorted(soak.steps.items()))}
    values |= {"leaks": leaks(soak.lives, soak.disk)}
    for key, value in values.items():
        shown = "".join(f"\n{'':>24}{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{key:>20}  {shown}")
    if options.json:
        print(json.dumps({**values, **{name: len(values[name]) for name in WRONG}}))
    by_hooks = [
        reason for reason in soak.taken_out if "prolog" in reason.lower() or "epilog" in reason.lower()
    ]
    return 1 if any(values[name] for name in WRONG) or by_hooks or leaking(values["leaks"]) else 0


if __name__ == "__main__":
    sys.exit(main())
