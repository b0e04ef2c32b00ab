"""Generate jobs of many shapes, with the true use of their GPUs and their nodes' reports in each second.

This module does not use slurm_gpu.alerts. It computes the truth from the observed use of the GPUs in each
second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

SECONDS = 2400
# Interval at which a node reports its values.
REPORT_INTERVAL_S = 10
# One value covers at most this much time before its report.
VALUE_COVERS_S = 30
_RECORDS_S, _RECORDS_LATE_S = 300, 60

Seconds = NDArray[np.uint8]
Chance = random.Random


@dataclass
class Gpu:
    """The use of one GPU in each second, in percent, and the reports about it."""

    did: Seconds
    reported: Sequence[int]
    """Seconds in which the node reports the GPU."""
    lag_s: int
    """Age of each reading when the node reports it."""
    unread: range = range(0)
    """Seconds in which the driver does not respond."""
    outage: range = range(0)
    """Seconds in which slurm-gpud is down; afterwards, it does not remember earlier work."""

    def value(self, second: int) -> int | None:
        """Return the last reading, in percent."""
        return None if second in self.unread else int(self.did[max(0, second - self.lag_s)])

    def idle_s(self, second: int) -> int | None:
        """Return the seconds since a reading was last above 1 %."""
        work = self._last_work[max(0, second - self.lag_s)]
        begun_s = self.outage.stop if second >= self.outage.start else 0
        return None if second in self.unread or work < begun_s else int(second - work)

    @cached_property
    def _last_work(self) -> NDArray[np.int64]:
        return last_work(self.did, 0, -1)


def last_work(did: Seconds, begin_s: int, none: int) -> NDArray[np.int64]:
    """Return, for each second, the last second with work since `begin_s`, or `none` before any work."""
    seconds = np.arange(len(did))
    return np.maximum.accumulate(np.where((did > 1) & (seconds >= begin_s), seconds, none))


@dataclass
class Job:
    """One job; times are seconds of the scenario."""

    number: int
    shape: str
    circumstance: str
    gpus: list[Gpu]
    start_s: int
    known_s: int
    """Second from which Slurm reports the job."""
    requeued_s: int | None = None
    """Second of the job's requeue."""
    suspended: range = range(0)
    shared: bool = False
    bare: bool = False
    """Whether slurm-gpud on the job's nodes does not report `idle_s`."""
    recorded: bool = True
    """Whether nodes send records of the job."""
    _uses: dict[tuple[int, int], bool] = field(default_factory=dict)

    def begin_s(self, second: int) -> int:
        """Return the start of the run at that second."""
        return self.start_s if self.requeued_s is None or second < self.requeued_s else self.requeued_s

    def recorded_use(self, second: int) -> bool | None:
        """Return whether the job's records, sent every five minutes, contain any use of its GPUs."""
        begin_s = self.begin_s(second)
        until_s = (second - _RECORDS_LATE_S - begin_s) // _RECORDS_S * _RECORDS_S + begin_s
        if not self.recorded or until_s <= begin_s:
            return None
        if (begin_s, until_s) not in self._uses:
            used = any((gpu.did[begin_s:until_s] > 1).any() for gpu in self.gpus)
            self._uses[begin_s, until_s] = used
        return self._uses[begin_s, until_s]


class Truth:
    """The observed use of GPUs by the last run of a job, for each second.

    `since_s`: start of the watch.
    """

    def __init__(self, job: Job, watch_s: int) -> None:
        self.job, self.begin_s = job, job.begin_s(SECONDS)
        self.since_s = max(self.begin_s, watch_s - VALUE_COVERS_S, job.known_s - VALUE_COVERS_S)
        seconds = np.arange(SECONDS)
        known = np.stack([self._known(gpu) for gpu in job.gpus])
        last = np.stack([last_work(self._observed(gpu), self.begin_s, -1) for gpu in job.gpus])
        last = np.take_along_axis(last, known, axis=1)
        self.used = last >= 0
        """[gpu, second]: whether the run has used the GPU."""
        last = np.where(self.used, last, self.begin_s)
        if job.suspended:
            stopped = job.suspended
            last = np.maximum(last, np.where(seconds >= stopped.start, np.minimum(seconds, stopped.stop), 0))
        self.quiet_s = seconds - last
        """[gpu, second]: seconds for which the GPU has been idle while the job was not suspended."""
        self._seen_s = np.stack([self._seen(gpu) for gpu in job.gpus])

    def coverage(self, gpu: int, since_s: int, second: int) -> float:
        """Return the share of the seconds from `since_s` to `second` that nodes reported."""
        seen_s = self._seen_s[gpu]
        return float(seen_s[second] - seen_s[since_s]) / max(1, second - since_s)

    def idle_for(self, least_s: int, least_coverage: float) -> NDArray[np.bool_]:
        """Return, by second, whether all GPUs have been idle for `least_s` with at least `least_coverage`.

        A GPU that was never used must have been observed since the start of the watch.
        """
        seconds = np.arange(SECONDS)
        since_s = max(self.since_s, self.job.suspended.stop)
        before = np.maximum(seconds - least_s, 0)
        late = (self._seen_s - np.take(self._seen_s, before, axis=1)) / least_s
        whole = (self._seen_s - self._seen_s[:, [since_s]]) / np.maximum(1, seconds - since_s)
        seen = np.where(self.used, late, whole) >= least_coverage
        return np.asarray(
            ((self.quiet_s >= least_s) & seen).all(axis=0) & (seconds - self.since_s >= least_s)
        )

    def latest_coverage(self, gpu: int, second: int, least_s: int) -> float:
        """Return the highest coverage of all spans of at least `least_s` that end at `second`."""
        starts = np.arange(self.since_s, second - least_s + 1)
        reported = self._seen_s[gpu]
        return float(((reported[second] - reported[starts]) / (second - starts)).max(initial=0.0))

    def _observed(self, gpu: Gpu) -> Seconds:
        if not gpu.outage:
            return gpu.did
        did, reported = gpu.did.copy(), [second for second in gpu.reported if second < gpu.outage.start]
        did[max(0, reported[-1] - gpu.lag_s) + 1 if reported else 0 : gpu.outage.stop] = 0
        return did

    def _reports(self, gpu: Gpu) -> list[int]:
        from_s = max(self.since_s, self.job.known_s)
        return [second for second in gpu.reported if second >= from_s and gpu.value(second) is not None]

    def _known(self, gpu: Gpu) -> NDArray[np.int64]:
        """Return, for each second, the time of the last reading that was reported by then."""
        known = np.zeros(SECONDS, dtype=np.int64)
        for second in self._reports(gpu):
            known[second] = max(0, second - gpu.lag_s)
        return np.asarray(np.maximum.accumulate(known))

    def _seen(self, gpu: Gpu) -> NDArray[np.int64]:
        """Return, for each second, the number of seconds that reports cover by then."""
        seen, before_s = np.zeros(SECONDS, dtype=np.int64), self.since_s
        for second in self._reports(gpu):
            seen[max(before_s, second - VALUE_COVERS_S) : second] = 1
            before_s = second
        return np.asarray(np.cumsum(seen))


def _work(chance: Chance, seconds: int, low: int = 40, high: int = 100) -> Seconds:
    return np.array([chance.randint(low, high) for _ in range(seconds)], dtype=np.uint8)


def _rest(seconds: int) -> Seconds:
    return np.zeros(seconds, dtype=np.uint8)


def _pieces(seconds: int, pieces: Iterator[Seconds]) -> Seconds:
    found: list[Seconds] = []
    while sum(map(len, found)) < seconds:
        found.append(next(pieces))
    return np.concatenate([*found, _rest(0)])[:seconds]


def _bursts(chance: Chance) -> Iterator[Seconds]:
    longest_s = chance.choice((20, 60, 200))
    while True:
        yield _rest(chance.randint(5, longest_s))
        yield _work(chance, chance.randint(1, 4))


def _checkpoints(chance: Chance) -> Iterator[Seconds]:
    while True:
        yield _work(chance, chance.randint(60, 600))
        yield _rest(chance.randint(20, 210))


def _flickers(chance: Chance) -> Iterator[Seconds]:
    while True:
        yield _work(chance, chance.randint(1, 3), 2, 6)
        yield _rest(chance.randint(0, 4))


def _loads(chance: Chance, seconds: int) -> Seconds:
    quiet = min(seconds, chance.choice((30, 120, 220, 600, 900)))
    return np.concatenate([_rest(quiet), _work(chance, seconds - quiet)])


def _stops(chance: Chance, seconds: int) -> Seconds:
    until = chance.randint(60, max(61, seconds - 400))
    return np.concatenate([_work(chance, until), _rest(seconds - until)])


def _pauses(chance: Chance, seconds: int) -> Seconds:
    first, quiet = chance.randint(60, 600), chance.randint(350, 900)
    return np.concatenate([_work(chance, first), _rest(quiet), _work(chance, seconds)])[:seconds]


def _once(chance: Chance, seconds: int) -> Seconds:
    before = chance.randint(20, 400)
    return np.concatenate([_rest(before), _work(chance, chance.randint(2, 5)), _rest(seconds)])[:seconds]


SHAPES: dict[str, Callable[[Chance, int], Seconds]] = {
    "never": lambda _, seconds: _rest(seconds),
    "never, with an idle process": lambda chance, seconds: _work(chance, seconds, 0, 1),
    "steady": _work,
    "little": lambda chance, seconds: _work(chance, seconds, 2, 6),
    "flickers": lambda chance, seconds: _pieces(seconds, _flickers(chance)),
    "bursts": lambda chance, seconds: _pieces(seconds, _bursts(chance)),
    "checkpoints": lambda chance, seconds: _pieces(seconds, _checkpoints(chance)),
    "loads data first": _loads,
    "stops": _stops,
    "pauses": _pauses,
    "works once": _once,
    "one GPU unused": _work,
}
# Shapes whose work falls between two values, so only `idle_s` includes it.
_SHORT = ("bursts", "flickers", "works once")
CIRCUMSTANCES = (
    *("plain", "plain", "values lost", "seldom reported", "an outage", "unread", "slurm-gpud restarted"),
    *("reported late", "suspended", "requeued", "shared", "an old slurm-gpud"),
)


def jobs(seed: int, n: int) -> list[Job]:
    """Return `n` jobs: each shape in each circumstance, then random combinations."""
    chance = random.Random(seed)
    pairs = [(shape, one) for shape in SHAPES for one in CIRCUMSTANCES]
    chance.shuffle(pairs)
    pairs += [(chance.choice(list(SHAPES)), chance.choice(CIRCUMSTANCES)) for _ in range(n)]
    return [_job(chance, 1000 + place, *pair) for place, pair in enumerate(pairs[:n])]


def _job(chance: Chance, number: int, shape: str, circumstance: str) -> Job:
    start_s = chance.randint(0, 600)
    if circumstance == "an old slurm-gpud" and shape in _SHORT:
        circumstance = "plain"
    n_gpus = chance.choice((2, 4)) if shape == "one GPU unused" else chance.choice((1, 1, 2, 4))
    job = Job(number, shape, circumstance, [], start_s, known_s=start_s + chance.randint(0, 9))
    if circumstance == "reported late":
        job.known_s = start_s + chance.randint(35, 100)
    elif circumstance == "suspended":
        from_s = start_s + chance.randint(100, 900)
        job.suspended = range(from_s, from_s + chance.randint(100, 900))
    elif circumstance == "requeued":
        job.requeued_s = start_s + chance.randint(200, 900)
    job.shared, job.bare = circumstance == "shared", circumstance == "an old slurm-gpud"
    job.recorded = circumstance not in ("seldom reported", "an outage", "unread", "suspended")
    reported, outage = _reported(chance, circumstance, start_s)
    for place in range(n_gpus):
        did = np.concatenate([_work(chance, start_s), SHAPES[shape](chance, SECONDS - start_s)])
        if shape == "one GPU unused" and place == 0:
            did[start_s:] = 0
        if job.requeued_s is not None:
            again = SHAPES[shape](chance, SECONDS - job.requeued_s)
            did[job.requeued_s :] = 0 if shape == "one GPU unused" and place == 0 else again
        did[job.suspended.start : job.suspended.stop] = 0
        gpu = Gpu(did, reported, lag_s=chance.randint(0, 8), outage=outage)
        if circumstance == "unread":
            from_s = start_s + chance.randint(200, 1200)
            gpu.unread = range(from_s, from_s + chance.randint(100, 900))
        job.gpus.append(gpu)
    return job


def _reported(chance: Chance, circumstance: str, start_s: int) -> tuple[list[int], range]:
    """Return when the job's nodes report values, and when their slurm-gpud is down."""
    every, outage = list(range(chance.randrange(REPORT_INTERVAL_S), SECONDS, REPORT_INTERVAL_S)), range(0)
    if circumstance == "values lost":
        every = [second for second in every if chance.random() > 0.15]
    elif circumstance == "seldom reported":  # 40 s of every two minutes: half of the time is unreported
        every = [second for second in every if second % 120 < 40]
    elif circumstance in ("an outage", "slurm-gpud restarted"):
        from_s = start_s + chance.randint(100, 1200)
        ended = circumstance != "an outage"
        until_s = from_s + (chance.randint(10, 40) if ended else chance.randint(200, 900))
        every = [second for second in every if not from_s <= second < until_s]
        outage = range(from_s, until_s) if ended else outage
    return every, outage
