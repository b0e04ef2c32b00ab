"""What bench/soak.py asks at the end: is each job recorded, once, as long as it held its GPUs, and truly?"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.cluster import Lab
from lab.hooks import Held
from lab.truth import GpuShare
from slurm_gpu.config import load_config
from slurm_gpu.database.client import DatabaseClient, Run
from slurm_gpu.database.derive import resolve_double_watches
from slurm_gpu.database.match import node_set
from slurm_gpu.database.steady import held_s
from slurm_gpu.records import Record

WITHIN_S = 300.0
COVERED = 0.999
MOST_POINTS = 1.0
"""By how much the mean of a run may differ that was watched all the time."""
STAMPED_WITHIN_S = 0.05
"""/proc/uptime, which the hooks read, counts in 10 ms."""

Place = tuple[str, str]
"""(node, UUID)."""


def accounted(lab: Lab, jobs: Mapping[int, int]) -> dict[int, list[frozenset[str]]]:
    """The nodes of each run that Slurm's accounting has of each job that was started."""
    shown = lab.output(
        ["sacct", "-aXnPD", "-S", "now-1days", "-E", "now+1days", "-o", "JobIDRaw,Start,NodeList"]
    )
    found: dict[int, list[frozenset[str]]] = defaultdict(list)
    for line in shown.splitlines():
        job, start, nodes = line.split("|")
        if int(job) in jobs and start[:1].isdigit():
            found[int(job)].append(node_set(nodes))
    return found


def judge(lab: Lab, jobs: Mapping[int, int]) -> dict[str, Any]:
    """Compare what was recorded with Slurm's accounting, the hooks' stamps and what the GPUs did.

    A slurmctld that is killed goes on from what it saved seconds before. Of a job that it had begun since
    then it knows nothing: it may begin it anew on another node, or give its number to another job. Of those
    it cannot be told what would be right.
    """
    expected = accounted(lab, jobs)
    forgotten: list[int] = []
    lost: list[int] = []
    twice: list[int] = []
    points: list[float] = []
    beyond: list[int] = []
    off_s: dict[tuple[int, Place], float] = {}
    unlike: list[int] = []
    client = DatabaseClient(load_config(lab.layout.site_file))
    until = time.monotonic() + WITHIN_S
    for job in sorted(jobs):
        nodes = frozenset[str]().union(*expected.get(job, ()))
        held = _by_place(lab, [one for one in lab.held(job) if one.node in nodes])
        if any(one.positions and one.node not in nodes for one in lab.held(job)):
            forgotten.append(job)
            continue
        runs = _runs(client, job, len(held), until)
        told = {(record.node, record.device) for run in runs for record in run.devices or ()}
        n_expected = len(expected.get(job, ()))
        if n_expected and len(runs) != n_expected:
            (lost if len(runs) < n_expected else twice).append(job)
        elif held and told != held.keys():
            (lost if told < held.keys() else twice).append(job)
        elif len(runs) == 1:
            for off, allowed in _off_by(runs[0], lab.truth(job)):
                points.append(off)
                beyond += [job] if off > allowed else []
            for place, off, allowed_s in _off_s(runs[0], held):
                off_s[job, place] = off
                if abs(off) > allowed_s:
                    unlike.append(job)
                    _tell(job, place, off, held[place], runs[0])
    client.close()
    return {
        "jobs": len(jobs),
        "in_accounting": len(expected),
        "forgotten_by_slurmctld": forgotten,
        "lost": lost,
        "twice": twice,
        "held_compared": len(off_s),
        "held_worst_s": round(max(map(abs, off_s.values()), default=0.0), 3),
        "held_otherwise": sorted(set(unlike)),
        "compared": len(points),
        "worst_points": round(max(points, default=0.0), 2),
        "beyond": beyond,
    }


def _tell(job: int, place: Place, off_s: float, stamped: Sequence[Held], run: Run) -> None:
    """Both sides of a hold that differ, on stderr: the lab is gone when somebody reads of it."""
    print(f"job {job} on {place}: {off_s:+.3f} s; stamps {stamped}", file=sys.stderr)
    for record in run.devices or ():
        if (record.node, record.device) == place:
            told = f"prolog {record.prolog_s}, {record.first_s} to {record.last_s}, held {record.held_s} s"
            since = f"at uptime {record.uptime_s}, final {record.final}, seq {record.seq}"
            print(f"  segment {record.segment}: {told}, {since}", file=sys.stderr)


def _by_place(lab: Lab, held: Sequence[Held]) -> dict[Place, list[Held]]:
    """When each GPU was held, by the stamps of the lab's own hooks."""
    places: dict[Place, list[Held]] = defaultdict(list)
    for one in held:
        for position in one.positions:
            places[one.node, lab.nodes[one.node].at_position(position).uuid].append(one)
    return places


def _runs(client: DatabaseClient, job: int, n_devices: int, until: float) -> Sequence[Run]:
    """As slurm-gpudbd shows them, once the last record of each device is there, or time is over."""
    while True:
        runs = client.run(str(job))
        records = [record for run in runs for record in run.devices or ()]
        final = {(record.node, record.device) for record in records if record.final}
        over = runs and all(run.end_s is not None for run in runs)
        if (over and len(final) == n_devices) or time.monotonic() > until:
            return runs
        time.sleep(2)


def _off_s(run: Run, held: Mapping[Place, Sequence[Held]]) -> Iterator[tuple[Place, float, float]]:
    """By how much the seconds that each device was held differ from the stamps, and how much they may."""
    places: dict[Place, list[Record]] = defaultdict(list)
    kept, _ = resolve_double_watches(run.devices or ())
    for record in kept:
        places[record.node, record.device].append(record)
    for place, records in places.items():
        stamped = [(one.start_s, one.end_s, one.unsure_s) for one in held.get(place, ())]
        seconds = [end_s - start_s for start_s, end_s, _ in stamped if end_s is not None]
        if len(seconds) == len(stamped) == 1:
            yield place, held_s(records) - seconds[0], STAMPED_WITHIN_S + stamped[0][2]


def _off_by(run: Run, shares: Sequence[GpuShare]) -> Iterator[tuple[float, float]]:
    """Percentage points of a run that was watched from end to end, and how many it may be off.

    Nobody knows where in the time that our hooks took (`unsure_s`) the run begins and ends for us.
    """
    seconds = sum(share.end_s - share.start_s for share in shares)
    if run.coverage is None or run.coverage < COVERED or run.ugpucore is None or seconds < 1:
        return
    true = sum(share.usage.util_pct * (share.end_s - share.start_s) for share in shares) / seconds
    unsure_s = sum(share.unsure_s for share in shares)
    yield abs(run.ugpucore - true), MOST_POINTS + 100 * unsure_s / seconds
