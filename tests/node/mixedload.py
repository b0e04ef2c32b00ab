"""A random mixture of jobs on one node, generated from a seed, with their load on the GPUs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lab.simgpu.load import Point
from lab.simgpu.schedule import Phase, to_points

SHORTEST_S, LONGEST_S = 1.0, 600.0
_MEMORY_MIB = 39_000
_SHARERS = 4
# The shortest mean duration of a phase: programs do not fill and empty GPU memory many times a second.
_PHASE_S = 0.3


@dataclass(frozen=True)
class Program:
    """One process of a job on one of its GPUs, `start_s` after the job's start."""

    gpu: int
    start_s: float
    phases: tuple[Phase, ...]

    def points(self, start_ns: int) -> tuple[Point, ...]:
        return to_points(self.phases, start_ns + round(self.start_s * 1e9))


@dataclass(frozen=True)
class Run:
    """One run of a job, from its prolog to its epilog (seconds since the load began)."""

    job_id: int
    restart: int
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    programs: tuple[Program, ...] = ()

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass
class Load:
    """Runs on GPUs and MIG instances with one job each, and on GPUs that several jobs share."""

    seed: int
    runs_wanted: int
    whole: Sequence[int]
    shared: Sequence[int]
    # The memory of each MIG instance in MiB.
    instances: Mapping[int, float]
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._free_s = {(gpu, 0): 0.0 for gpu in (*self.whole, *self.instances)}
        self._free_s |= {(gpu, place): 0.0 for gpu in self.shared for place in range(_SHARERS)}
        job_id = 0
        while len(self.runs) < self.runs_wanted:
            job_id += 1
            kind = self._dice.choices(("one", "several", "shard", "mig", "requeue"), (5, 2, 5, 3, 1))[0]
            if kind == "several":
                count = self._dice.randint(2, len(self.whole))
                self._add(job_id, 0, [(gpu, 0) for gpu in self._dice.sample(list(self.whole), count)])
            elif kind == "shard":
                self._add(job_id, 0, [(self._dice.choice(self.shared), self._dice.randrange(_SHARERS))])
            elif kind == "mig":
                self._add(job_id, 0, [(self._dice.choice(list(self.instances)), 0)])
            else:
                for restart in range(2 if kind == "requeue" else 1):
                    self._add(job_id, restart, [(self._dice.choice(self.whole), 0)])
        self.runs.sort(key=lambda run: run.start_s)

    def _add(self, job_id: int, restart: int, places: Sequence[tuple[int, int]]) -> None:
        dice = self._dice
        before = [run.end_s for run in self.runs if run.job_id == job_id]
        # The next job often starts within the driver's sample in which the previous job ended.
        start_s = max([self._free_s[place] for place in places] + before) + dice.choice((0.03, 0.2, 1.7, 6.1))
        start_s += dice.random() * 0.5
        seconds = math.exp(dice.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        for place in places:
            self._free_s[place] = start_s + seconds
        gpus = tuple(gpu for gpu, _ in places)
        programs = tuple(program for gpu in gpus for program in self._programs(gpu, seconds))
        self.runs.append(Run(job_id, restart, gpus, start_s, start_s + seconds, programs))

    def _programs(self, gpu: int, seconds: float) -> Iterator[Program]:
        """Yield up to two programs that end no later than the job; an idle job has none."""
        dice = self._dice
        count = dice.choices((0, 1, 2), (1, 8, 1))[0]
        memory_mib = self.instances.get(
            gpu, _MEMORY_MIB if gpu in self.whole else _MEMORY_MIB // (_SHARERS + 1)
        )
        memory_mib /= max(1, count)
        for _ in range(count):
            begin = dice.choice((0.02, 0.3 * dice.random())) * seconds
            end = dice.choice((1.0, 1.0 - 0.3 * dice.random())) * seconds
            yield Program(gpu, begin, tuple(self._phases(end - begin, memory_mib)))

    def _phases(self, seconds: float, memory_mib: float) -> Iterator[Phase]:
        dice = self._dice
        count = min(dice.choices((1, 2, 5, 12), (3, 2, 2, 1))[0], max(1, int(seconds / _PHASE_S)))
        cuts = sorted(dice.random() for _ in range(count - 1))
        for begin, end in zip([0.0, *cuts], [*cuts, 1.0], strict=True):
            if (end - begin) * seconds < 0.002:
                continue
            util, memory = dice.choice((0.0, 100.0, dice.uniform(0, 100))), dice.uniform(0, memory_mib)
            ramp = dice.random() < 0.3
            to_util = dice.uniform(0, 100) if ramp else util
            to_memory = dice.uniform(0, memory_mib) if ramp else memory
            yield Phase((end - begin) * seconds, (util, to_util), (memory, to_memory))
