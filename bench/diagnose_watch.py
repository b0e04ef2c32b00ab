"""Measure cost, delay and false alarms of the watch over running jobs.

    .venv/bin/python bench/diagnose_watch.py [--jobs 1000] [--cases 60] [--seed 1] [--json]

Ten minutes of training runs by bench/diagnose_injector.py are replayed to slurm_gpu.database.verdicts.watch
as reports of nodes. Each node reports every ten seconds, and a requested window arrives 15 s later. Cost is
measured with `--jobs` jobs of 8 GPUs, 2 % of them faulty, judged every 5 s; it is the processor time of the
watch alone, without the database. The delay from fault to report, and alarms on healthy training runs, are
measured with training runs of all sizes. The streams are synthetic. The benchmark takes about 2 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.arguments import number
from bench.diagnose_injector import WINDOW_S, Case, faulty, healthy
from bench.diagnose_injector_record import START_S
from slurm_gpu.alerts.suspects import Statement
from slurm_gpu.database.verdicts.accused import Accused
from slurm_gpu.database.verdicts.snapshots import VerdictSnapshots
from slurm_gpu.database.verdicts.store import StoredVerdict
from slurm_gpu.database.verdicts.watch import SCAN_S, JobWatch
from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.diagnose.live import BYTES_OF_A_GPU
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import Series
from slurm_gpu.diagnose.verdict import Cause, Verdict
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.wire import DeviceFacts, Live, LiveDevice

WHOLE = 1000.0
GPUS = 8
SENT_AFTER_S = 15.0
FAULTY_SHARE = 0.02
REPORT_INTERVAL_S = 10
LARGE = 0.15
TOGETHER = 24
"""The number of training runs watched at the same time, two thirds of them faulty: far more than usual."""
_KINDS = 12


class ReplayedJobs(VerdictSnapshots):
    """The inputs of the watch, replayed from recordings; several jobs may use the same one."""

    def __init__(self, cases: Mapping[int, Case]) -> None:
        self.cases = cases
        self.second = 0
        self.stored: list[StoredVerdict] = []
        self.windows = 0
        self._asked: dict[int, int] = {}
        self._live: dict[str, Live] = {}
        self._parts: dict[tuple[int, int, int], list[LiveDevice]] = {}
        self._queue = {job: _queued(job, case) for job, case in cases.items()}

    def pass_s(self, seconds: int) -> None:
        """Advance the time, and let nodes report."""
        for _ in range(seconds):
            self.second += 1
            for job, case in self.cases.items():
                for node in range(case.job.n_nodes):
                    if (
                        self.second - 3 * node - job
                    ) % REPORT_INTERVAL_S == 0 and node not in case.recording.silent:
                        self._live[f"j{job}n{node + 1}"] = self._live_values(job, case, node)
        self._parts.clear()

    def _live_values(self, job: int, case: Case, node: int) -> Live:
        recording, key = case.recording, (id(case), node, self.second)
        devices = self._parts.get(key)
        rows = range(node * case.job.per_node, (node + 1) * case.job.per_node)
        if devices is None:
            devices = self._parts[key] = [_device(case, row, self.second) for row in rows]
        hosts = {metric: matrix[node] for metric, matrix in recording.hosts.items()}
        # Use the last ten complete seconds; later seconds have no samples yet.
        at = min(self.second // REPORT_INTERVAL_S, min((len(row) for row in hosts.values()), default=0)) - 1
        if at < 0:
            hosts = {}
        host: dict[str, float] = {}
        for metric, name in ((Metric.NETWORK, "net"), (Metric.INFINIBAND, "ib")):
            if metric in hosts:
                host |= {f"{name}_{way}_bytes_per_s": float(hosts[metric][at]) / 2 for way in ("rx", "tx")}
        if Metric.CPU in hosts:
            host["cpu_pct"] = 100 * float(hosts[Metric.CPU][at])
        names = [recording.workers[row].device for row in rows]
        mine = {name: replace(one, jobs=(job,)) for name, one in zip(names, devices, strict=True)}
        return Live(at_s=START_S + self.second, devices=mine, host=host)

    def wall(self) -> float:
        """Return the time."""
        return START_S + self.second

    def queue(self) -> Mapping[int, QueuedJob]:
        """Return the jobs, all of which run."""
        return self._queue

    def need_live(self, nodes: Collection[str]) -> None:
        pass

    def live(self) -> Mapping[str, Live]:
        """Return the latest live values."""
        return self._live

    def facts(self, node: str, uuid: str) -> DeviceFacts:
        """Return the facts of a GPU; all GPUs are alike."""
        return _facts(uuid)

    def index_of(self, node: str, uuid: str) -> int | None:
        """Return None: the indices of GPUs are unknown."""
        return None

    def adjusted(self, job: QueuedJob, verdict: Verdict) -> Verdict:
        """Return the verdict unchanged, since all jobs train."""
        return verdict

    def ask(self, job: QueuedJob) -> None:
        """Request the windows of a job."""
        self._asked[job.job_id] = self.second

    def series(self, job: QueuedJob, *, take_part: bool) -> tuple[Series, Groups | None] | None:
        """Return the windows of a job, some seconds after the request."""
        if self.second - self._asked[job.job_id] < SENT_AFTER_S:
            return None
        self.windows += 1
        case = self.cases[job.job_id]
        return case.recording.series(float(self.second)), case.groups

    def store(self, stored_: StoredVerdict) -> None:
        """Store a verdict."""
        self.stored.append(stored_)

    def close_left(self) -> None:
        """Do nothing: there are no connections to close."""

    def statements(self, since_s: float) -> list[Statement]:
        """Return no suspects."""
        return []


_FACTS: dict[str, DeviceFacts] = {}


def _facts(uuid: str) -> DeviceFacts:
    if uuid not in _FACTS:
        _FACTS[uuid] = DeviceFacts(
            node="n", uuid=uuid, at_s=0, index=0, power_limit_w=WHOLE, sm_clock_max_mhz=WHOLE
        )
    return _FACTS[uuid]


def _device(case: Case, row: int, second: int) -> LiveDevice:
    """Return the live values of a GPU at that second."""
    found: dict[Metric, float] = {}
    for metric, matrix in case.recording.values.items():
        known = case.recording.known_s.get(metric)
        if known is None:
            at = second - 1
        else:
            there = np.flatnonzero(known[row] <= second)
            at = int(there[-1]) if there.size and there[-1] >= second - 2 * REPORT_INTERVAL_S else -1
        value = float(matrix[row, at]) if at >= 0 else math.nan
        if math.isfinite(value):
            found[metric] = value

    def stored_(metric: Metric, whole: float = 1.0) -> float | None:
        return found[metric] * whole if metric in found else None

    throttle = found.get(Metric.THROTTLE)
    return LiveDevice(
        util_pct=stored_(Metric.UTIL, 100.0),
        mem_used_frac=stored_(Metric.MEM_USED),
        power_w=stored_(Metric.POWER, WHOLE),
        sm_clock_mhz=stored_(Metric.SM_CLOCK, WHOLE),
        sm_active_frac=stored_(Metric.SM_ACTIVE),
        tensor_frac=stored_(Metric.TENSOR),
        throttle=None if throttle is None else ("hw_slowdown",) if throttle >= 0.5 else (),
    )


def _queued(job: int, case: Case) -> QueuedJob:
    return QueuedJob(
        job_id=job,
        array_job_id=None,
        array_task=None,
        n_tasks=1,
        het_job_id=None,
        name="t",
        user="u",
        uid=1,
        account="a",
        qos="q",
        partition="p",
        state="RUNNING",
        reason="",
        restarts=0,
        submit_s=0,
        eligible_s=0,
        start_s=int(START_S),
        end_s=None,
        time_limit_s=None,
        n_nodes=case.job.n_nodes,
        nodes=tuple(f"j{job}n{node + 1}" for node in range(case.job.n_nodes)),
        tres_requested={},
        tres_allocated={},
        gpu_index={},
        gres_per_node="",
        features="",
        admin_comment="",
    )


def watched(played: ReplayedJobs) -> tuple[JobWatch, list[float]]:
    """Run the watch for ten minutes, and return the processor time of each pass."""
    watch = JobWatch(played, Accused(played.statements, played.index_of), DiagnosisThresholds())
    took = []
    while played.second + SCAN_S <= WINDOW_S:
        played.pass_s(int(SCAN_S))
        begin = time.thread_time()
        watch.scan()
        took.append(time.thread_time() - begin)
    return watch, took


def cost(n_jobs: int, seed: int) -> dict[str, Any]:
    """Measure a number of jobs of GPUS GPUs."""
    well = _some(lambda n: healthy(seed, n), _KINDS)
    ill = _some(lambda n: faulty(seed, list(FAULTS)[n % len(FAULTS)], n), _KINDS // 3)
    n_ill = round(FAULTY_SHARE * n_jobs)
    cases = {
        job: (ill if job < n_ill else well)[job % len(ill if job < n_ill else well)] for job in range(n_jobs)
    }
    played = ReplayedJobs(cases)
    watch, took = watched(played)
    return {
        "jobs": n_jobs,
        "gpus": GPUS * n_jobs,
        "share_of_a_core": round(sum(took) / WINDOW_S, 4),
        "pass_ms": {
            "median": round(1000 * float(np.median(took)), 1),
            "most": round(1000 * max(took), 1),
        },
        "windows": played.windows,
        "live_mb": round(GPUS * n_jobs * BYTES_OF_A_GPU / 1e6, 1),
        "watched": watch.shown.watched,
    }


FAULTS = (Cause.SLOW, Cause.HANG, Cause.STARVATION, Cause.COMMUNICATION, Cause.IMBALANCE)


def _some(draw: Any, n: int) -> list[Case]:
    """Return the first `n` windows of running jobs with GPUS GPUs."""
    found: list[Case] = []
    number_of = 0
    while len(found) < n:
        case = draw(number_of)
        number_of += 1
        fits = case.job.n_workers == GPUS and not case.timeline and case.running and case.steps is None
        if fits and all(node not in case.recording.silent for node in range(case.job.n_nodes)):
            found.append(case)
    return found


def detection(n_cases: int, seed: int) -> dict[str, Any]:
    """Return delays from fault to report by cause, and alarms on healthy training runs."""
    cases: list[Case] = []
    for n in range(n_cases):
        cases += [faulty(seed, cause, n) for cause in (Cause.SLOW, Cause.HANG)]
        cases.append(healthy(seed, n))
    chosen = {
        job: case
        for job, case in enumerate(cases, 1)
        if not case.timeline and case.running and case.steps is None
    }
    first: dict[int, StoredVerdict] = {}
    jobs = list(chosen)
    for at in range(0, len(jobs), TOGETHER):
        played = ReplayedJobs({job: chosen[job] for job in jobs[at : at + TOGETHER]})
        watched(played)
        for stored_ in played.stored:
            first.setdefault(stored_.verdict.job_id, stored_)
    values: dict[str, Any] = {}
    for cause in (Cause.SLOW, Cause.HANG):
        of = {
            job: case.fault.since_s
            for job, case in chosen.items()
            if case.fault is not None
            and case.cause is cause
            and case.fault.since_s is not None
            and (cause is Cause.HANG or case.fault.size >= LARGE)
            and case.fault.since_s <= WINDOW_S - 180
        }
        after = sorted(
            first[job].verdict.reported_at_s - START_S - since_s
            for job, since_s in of.items()
            if job in first and first[job].verdict.cause == cause
        )
        values[cause.value] = {
            "cases": len(of),
            "reported": len(after),
            "median_s": round(float(np.median(after)), 1) if after else None,
            "p90_s": round(float(np.quantile(after, 0.9)), 1) if after else None,
            "within_30_s": sum(at <= 30 for at in after),
            "within_180_s": sum(at <= 180 for at in after),
        }
    well = {job: case for job, case in chosen.items() if case.fault is None}
    alarms = [first[job].verdict.cause for job in well if job in first]
    values["healthy"] = {
        "cases": len(well),
        "alarms": len(alarms),
        "of": {cause: alarms.count(cause) for cause in sorted(set(alarms))},
    }
    return values


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=number(10), default=1000, help="of 8 GPUs (default: %(default)s)")
    parser.add_argument("--cases", type=number(4), default=60, help="of each kind (default: %(default)s)")
    parser.add_argument("--seed", type=number(0), default=1, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    found = {"cost": cost(arguments.jobs, arguments.seed)}
    one, pass_ms = found["cost"], found["cost"]["pass_ms"]
    print(
        f"{one['jobs']} jobs of {GPUS} GPUs: {one['share_of_a_core']:.1%} of a core; "
        f"a pass {pass_ms['median']} ms, {pass_ms['most']} ms at most; "
        f"{one['windows']} windows judged in ten minutes; {one['live_mb']} MB"
    )
    found["detection"] = detection(arguments.cases, arguments.seed)
    for name, row in found["detection"].items():
        print(f"{name:16} {', '.join(f'{key} {value}' for key, value in row.items())}")
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
