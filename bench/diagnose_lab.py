"""Check verdicts of `slurm-gpu diagnose` on training runs in the lab.

    .venv/bin/python bench/diagnose_lab.py [--faults shard,heat,healthy] [--size 0.3] [--seed 1]
                                           [--well-s 120] [--ill-s 180] [--json]

Training runs of bench/diagnose_injector*.py run as jobs of two nodes with four simulated H100s each. simgpu
follows their schedules below the real pynvml, slurm-gpud samples the GPUs, and slurm-gpudbd watches the jobs.
Only the load of GPUs and hosts is simulated. Each run is healthy for --well-s, then faulty for --ill-s. As
many runs as fit on the nodes run at the same time. `slurm-gpu diagnose ID` is called repeatedly during the
run (window), and after its end (timeline). The verdicts of slurm-gpudbd's watch are also collected. All nodes
are this host, so their CPU and network values are this machine's. The benchmark requires root; six faults
take about 20 minutes. The exit status is 1 after any wrong verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.arguments import number, part
from bench.diagnose_injector import Case
from bench.diagnose_lab_schedule import FAULTS, draw_case, schedules, text_of
from bench.diagnose_score import named_right
from lab.cluster import Lab
from lab.devices import spec
from lab.errors import LabError
from lab.options import GpuModel, JobSubmit, NodeGpus, Options
from lab.polling import wait_for
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.config.site import load_config
from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.verdict import Cause, Verdict
from slurm_gpu.reports.diagnosed.judged import judge_run

SIX = ("shard", "heat", "congestion", "starved node", "stuck worker", "healthy")
NODES = 2
USER = "alice"
OPTIONS = Options(
    native_limits=False,
    job_submit=JobSubmit.NONE,
    gpus={f"n{number}": NodeGpus(model=GpuModel.H100) for number in range(1, 5)},
)
"""The options of the lab."""
_ALL_BEGIN_S = 15
"""Seconds from a job's start until all of its ranks run, on a busy host."""
_POLL_S, _STREAM_EACH_S = 5.0, 5
_LAST_S = 3.0
"""Seconds before the end in which no diagnosis is started."""
_OVER_S = 120.0
_HANG_OVER_S = 600
"""Seconds after which a hang at the end of a finished job is reported."""
_SCRIPT = """\
#!/bin/sh
at=$(($(date +%s) + {lead_s}))
echo $at > {directory}/at
srun sh -c \\
    'exec simgpu --gpus $SLURM_LOCALID --phases @{directory}/rank$SLURM_PROCID --at '$at
"""


@dataclass(frozen=True, kw_only=True)
class JudgedVerdict:
    """One verdict, and whether it is right."""

    cause: str
    kind: str
    who: Sequence[str]
    confidence: float
    by: str
    right: bool
    named: bool
    """Whether all culprits are named, and no healthy worker."""


@dataclass(kw_only=True)
class TrainingResult:
    """The verdicts on one training run."""

    fault: str
    cause: str
    culprits: Sequence[str]
    gpus: int
    since_s: float | None
    """Start of the fault, in seconds since the start of the training run, like all times below."""
    synthetic: JudgedVerdict
    """The verdict on the stream without the lab."""
    stream_s: float | None = None
    """The time from which the right verdict was reported continuously."""
    live: JudgedVerdict | None = None
    """The verdict of `slurm-gpu diagnose` just before the end."""
    over: JudgedVerdict | None = None
    """The verdict after the end, by the timeline only."""
    asked_s: float | None = None
    """The time from which `slurm-gpu diagnose` gave the right verdict continuously."""
    watch_s: float | None = None
    """The time at which the watch reported the right verdict."""
    watch: JudgedVerdict | None = None
    alarms: list[str] = field(default_factory=list)
    """Other verdicts of the command and the watch."""
    over_can_tell: bool = True
    """False for a hang of less than ten minutes, which cannot be distinguished from the end of a job."""

    @property
    def right(self) -> bool:
        """Return whether all verdicts were right."""
        result = [self.live] + [self.over] * (self.cause != Cause.HANG or self.over_can_tell)
        return all(one is not None and one.right and one.named for one in result) and not self.alarms


@dataclass(kw_only=True)
class Training:
    """A training run that runs in the lab."""

    case: Case
    job_id: int
    directory: Path
    at_s: float = 0.0
    nodes: Sequence[str] = ()
    found: TrainingResult

    def since_start(self) -> float:
        """Return the seconds since the start of the training run."""
        return time.time() - self.at_s

    def judged(self, lab: Lab, verdict_json: dict[str, Any], by: str) -> JudgedVerdict:
        """Return a verdict with the injector's names, and whether it is right."""
        ours = {node: f"n{number}" for number, node in enumerate(self.nodes, 1)}
        workers = {(worker.node, worker.index): worker for worker in self.case.recording.workers}
        culprits = []
        for one in verdict_json["culprits"]:
            (gpu,) = [gpu for gpu in lab.nodes[one["node"]].gpus if gpu.uuid == one["device"]]
            culprits.append(workers[ours[one["node"]], gpu.nvml_index])

        def name(text: str) -> str:
            node, _, rest = text.partition(" ")
            return f"{ours[node]} {rest}" if node in ours else text

        verdict = Verdict(
            cause=Cause(verdict_json["cause"]),
            kind=verdict_json["kind"],
            culprits=tuple(culprits),
            nodes=tuple(ours[node] for node in verdict_json["nodes"]),
            roles=tuple(map(name, verdict_json["roles"])),
            groups={
                group: [name(one) for one in names] for group, names in verdict_json.get("groups", {}).items()
            },
            strength=verdict_json["confidence"],
        )
        return replace(_judged(self.case, verdict, by), confidence=verdict_json["confidence"])


def _stream_delay_s(case: Case) -> float | None:
    """Return when the stream itself first gives the right verdict continuously."""
    first = None
    for second in range(_STREAM_EACH_S, int(case.length_s) + 1, _STREAM_EACH_S):
        result = _judged(case, diagnose(case.recording.series(float(second))), "stream")
        first = (second if first is None else first) if result.right and result.named else None
    return first


def _judged(case: Case, verdict: Verdict, by: str) -> JudgedVerdict:
    right = verdict.cause is case.cause
    names = [worker.name for worker in verdict.culprits] or [*verdict.roles] or [*verdict.nodes]
    named = right and (named_right(case, verdict) if case.fault is not None else not names)
    return JudgedVerdict(
        cause=verdict.cause.value,
        kind=verdict.kind,
        who=names,
        confidence=round(verdict.confidence, 2),
        by=by,
        right=right,
        named=named,
    )


def submit(lab: Lab, name: str, seed: int, size: float, well_s: int, ill_s: int) -> Training:
    """Draw the training run, write its schedules, and start it."""
    case = draw_case(seed, name, size=size, well_s=well_s, ill_s=ill_s, n_nodes=NODES)
    directory = lab.layout.home / USER / f"{name.replace(' ', '-')}-{time.time_ns()}"
    lab.run_as(USER, ["mkdir", str(directory)])
    gpu = spec(lab.nodes["n1"].gpus[0])
    ranks = schedules(case, gpu, np.random.default_rng([seed, len(name)]))
    for rank, phases in enumerate(ranks):
        (directory / f"rank{rank}").write_text(text_of(phases))
    options = (
        f"--nodes={NODES}",
        f"--gpus-per-node={case.job.per_node}",
        f"--ntasks-per-node={case.job.per_node}",
        "--time=60",
        f"--output={directory}/out",
    )
    script = _SCRIPT.format(lead_s=_ALL_BEGIN_S, directory=directory)
    job_id = lab.submit(USER, *options, script=script)
    synthetic = _judged(case, diagnose(case.recording.series(), running=True), "stream")
    workers = case.recording.workers
    found = TrainingResult(
        fault=name,
        cause=case.cause.value,
        culprits=[workers[row].name for row in case.fault.culprits] if case.fault else [],
        gpus=case.job.n_workers,
        since_s=case.fault.since_s if case.fault else None,
        synthetic=synthetic,
        stream_s=_stream_delay_s(case),
        over_can_tell=case.cause is not Cause.HANG or ill_s > _HANG_OVER_S,
    )
    return Training(case=case, job_id=job_id, directory=directory, found=found)


def follow(lab: Lab, trainings: Sequence[Training], say: Callable[[str], None]) -> None:
    """Collect the verdicts on training runs until they end."""
    with DatabaseClient(load_config(lab.layout.site_file)) as database:
        for one in trainings:
            at = one.directory / "at"
            wait_for(partial(_is_written, at), 120, f"{at} is written")
            one.at_s = float(at.read_text())
            one.nodes = sorted({interval.node for interval in lab.intervals(one.job_id)})
        last_s = max(one.at_s + one.case.length_s for one in trainings)
        with ThreadPoolExecutor() as pool:
            asking = [pool.submit(_run_diagnose, lab, one, say) for one in trainings]
            while time.time() < last_s and not any(task.done() and task.exception() for task in asking):
                begin = time.monotonic()
                _read_watch(lab, database, trainings, say)
                time.sleep(max(0.0, _POLL_S - (time.monotonic() - begin)))
            for task in asking:
                task.result()
        for one in trainings:
            one.found.over = _verdict_after_end(lab, database, one)
            _line(one, "over", one.found.over, say)


def _is_written(file: Path) -> bool:
    return file.exists() and file.read_text().endswith("\n")


def _read_watch(
    lab: Lab, database: DatabaseClient, trainings: Sequence[Training], say: Callable[[str], None]
) -> None:
    by_job = {item.job_id: item for item in database.verdicts().verdicts}
    for one in trainings:
        item = by_job.get(one.job_id)
        if item is None or one.since_start() > one.case.length_s:
            continue
        result = one.judged(lab, dict(item.verdict), "watch")
        if result.right and result.named:
            if one.found.watch is None:
                one.found.watch, one.found.watch_s = result, round(item.reported_at_s - one.at_s, 1)
                _line(one, "watch", result, say)
        else:
            _alarm(one, result, say)


def _run_diagnose(lab: Lab, one: Training, say: Callable[[str], None]) -> None:
    """Run `slurm-gpu diagnose` repeatedly during the training run."""
    while one.since_start() < one.case.length_s - _LAST_S:
        state = lab.output(["squeue", "-h", "-o%T", f"--jobs={one.job_id}"]).strip()
        if state != "RUNNING":
            output = (one.directory / "out").read_text()
            raise LabError(f"{one.found.fault}: job {one.job_id} is {state or 'gone'}\n{output}")
        answer = lab.run_as(USER, ["slurm-gpu", "diagnose", str(one.job_id), "--json"], check=False)
        if one.since_start() > one.case.length_s:
            return  # reported after the end
        if answer.returncode > 1:
            say(f"{one.found.fault}: slurm-gpu diagnose: {answer.stderr.strip()}")
        elif (verdict_json := json.loads(answer.stdout))["by"] == "window":
            _store_verdict(one, one.judged(lab, verdict_json["verdict"], "window"), say)
        time.sleep(_POLL_S)


def _store_verdict(one: Training, result: JudgedVerdict, say: Callable[[str], None]) -> None:
    one.found.live = result
    _line(one, "asked", result, say)
    if result.right and result.named:
        one.found.asked_s = round(one.since_start(), 1) if one.found.asked_s is None else one.found.asked_s
    else:
        one.found.asked_s = None
        if result.cause not in (Cause.HEALTHY, Cause.INCONCLUSIVE):
            _alarm(one, result, say)


def _alarm(one: Training, result: JudgedVerdict, say: Callable[[str], None]) -> None:
    text = f"{result.by}: {result.cause} ({result.kind}), {', '.join(result.who)}, {result.confidence:.0%}"
    if text not in one.found.alarms:
        one.found.alarms.append(text)
        _line(one, "ALARM", result, say)


def _line(one: Training, what: str, result: JudgedVerdict, say: Callable[[str], None]) -> None:
    fate = "right" if result.right and result.named else "wrong culprit" if result.right else "not right"
    say(
        f"{one.since_start():5.0f} s  {one.found.fault:18} {what:6} {result.cause} ({result.kind}), "
        f"{', '.join(result.who)}, {result.confidence:.0%}, by {result.by}: {fate}"
    )


def _verdict_after_end(lab: Lab, database: DatabaseClient, one: Training) -> JudgedVerdict:
    def is_over() -> bool:
        runs = database.run(str(one.job_id))
        return bool(runs) and runs[0].end_s is not None and bool(runs[0].coverage)

    wait_for(is_over, _OVER_S, f"slurm-gpudbd has the end of job {one.job_id}")
    run = database.run(str(one.job_id))[0]
    verdict = judge_run(run, (), database.timelines(str(one.job_id)), DiagnosisThresholds()).verdict
    return one.judged(lab, verdict.to_json(), "timeline")


def run(
    lab: Lab, names: Sequence[str], seed: int, size: float, well_s: int, ill_s: int
) -> list[TrainingResult]:
    """Run all training jobs, as many at a time as there are nodes."""
    at_once = len(lab.nodes) // NODES
    found = []
    for first in range(0, len(names), at_once):
        some = [submit(lab, name, seed, size, well_s, ill_s) for name in names[first : first + at_once]]
        follow(lab, some, lambda line: print(line, file=sys.stderr, flush=True))
        found += [one.found for one in some]
        lab.cancel_all_jobs()
    return found


def table(found: Sequence[TrainingResult]) -> str:
    """Return the table; the last three columns are seconds from the start of the fault to its report."""
    rows: list[tuple[str, ...]] = [
        ("fault", "stream", "running", "culprits", "ended", "stream s", "command s", "watch s")
    ]
    for one in found:
        begun = one.since_s or 0.0
        after = (
            "" if at is None or one.cause == Cause.HEALTHY else f"{at - begun:.0f} s"
            for at in (one.stream_s, one.asked_s, one.watch_s)
        )
        who = ", ".join(one.live.who if one.live else ()) or "–"
        result = (_short(one.synthetic), _short(one.live), who, _short(one.over))
        rows.append((one.fault, *result, *after))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _short(result: JudgedVerdict | None) -> str:
    if result is None:
        return "nothing"
    wrong = "" if result.right and result.named else " (wrong who)" if result.right else " (wrong)"
    return f"{result.cause} {result.confidence:.0%}{wrong}"


def _faults(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FAULTS:
            raise argparse.ArgumentTypeError(f"{name!r} must be one of {', '.join(FAULTS)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=_faults, default=[*SIX], help=f"any of {', '.join(FAULTS)}")
    parser.add_argument("--size", type=part, default=0.3, help="size of the faults (default: %(default)s)")
    parser.add_argument("--seed", type=number(0), default=1, help="(default: %(default)s)")
    parser.add_argument("--well-s", type=number(75), default=120, help="(default: %(default)s)")
    parser.add_argument("--ill-s", type=number(60), default=180, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    lab = Lab(options=OPTIONS)
    if any(lab.status().values()):
        raise SystemExit("a lab is up; take it down first: lab/down")
    try:
        lab.up()
        found = run(lab, arguments.faults, arguments.seed, arguments.size, arguments.well_s, arguments.ill_s)
    finally:
        lab.down()
    print(table(found))
    if arguments.json:
        print(json.dumps([asdict(one) | {"right": one.right} for one in found]))
    return 0 if all(one.right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
