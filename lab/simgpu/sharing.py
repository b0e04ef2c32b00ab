"""Simulate work that is slowed down by co-runners on the same GPU.

A table of speeds, which only simgpu reads, determines the slowdown. The work of a job is measured in seconds:
the time that it takes without co-runners. With co-runners, the job is slower, depending on its application
and theirs; its utilisation falls with its speed, and its phases take longer. The job ends when its work is
done, or when it requests more memory than the GPU has.

The truth contains the schedules and a file with the timeline of each job. A schedule ends when the speed
changes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from .errors import RequestError
from .layout import APPLICATION_BYTES
from .load import USUAL, Activity, Part, Point
from .schedule import Phase, to_points
from .truth import ProcessTruth
from .world import Device, World

# The interval at which a job checks its co-runners and whether its memory still fits.
LOOK_S = 0.1
PREFIX = "work-"
OUT_OF_MEMORY = "out of memory"


class SpeedTable:
    """Speeds with one co-runner, relative to the speed without any.

    ``speeds["bert"]["resnet50"]`` is the speed of bert with resnet50. With several co-runners, the
    delays that they add to a second of work are summed, as with time slicing.
    """

    def __init__(self, speeds: dict[str, dict[str, float]]) -> None:
        for name, row in speeds.items():
            if not 0 < len(name.encode()) <= APPLICATION_BYTES:
                raise RequestError(f"application {name!r}: must have 1 to {APPLICATION_BYTES} bytes")
            for other, speed in row.items():
                if not 0 < speed <= 1:
                    raise RequestError(f"speed {speed!r} of {name} with {other}: must be in (0, 1]")
        self.speeds = speeds

    @classmethod
    def read(cls, path: Path) -> SpeedTable:
        """Read the speeds from a JSON file."""
        try:
            content = json.loads(path.read_text())
            return cls({name: {**row} for name, row in content.items()})
        except (OSError, ValueError, AttributeError, TypeError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"--speeds {path}: {error}") from error

    def speed(self, application: str, others: Sequence[str]) -> float:
        """Return the speed with these co-runners; 1 without any."""
        return 1 / (1 + sum(1 / self._speed_with(application, other) - 1 for other in others))

    def _speed_with(self, application: str, other: str) -> float:
        try:
            return self.speeds[application][other]
        except KeyError:
            raise RequestError(f"speeds: no speed of {application} with {other}") from None


@dataclass(frozen=True)
class Work:
    """The work of a job. The durations of its phases are those without co-runners."""

    application: str
    phases: tuple[Phase, ...]
    table: SpeedTable
    activity: Activity = USUAL
    mps: bool = False

    @property
    def seconds(self) -> float:
        """The duration of all work without co-runners."""
        return sum(phase.seconds for phase in self.phases)

    def left(self, done_s: float, speed: float) -> list[Phase]:
        """Return the remaining phases after `done_s` of work, with their durations at this speed."""
        ends = list(accumulate(phase.seconds for phase in self.phases))
        first = min(bisect_right(ends, done_s), len(ends) - 1)
        phases = [self.phases[first].last(max(ends[first] - done_s, 1e-9)), *self.phases[first + 1 :]]
        return [
            Phase(
                phase.seconds / speed,
                (phase.util_pct[0] * speed, phase.util_pct[1] * speed),
                phase.memory_mib,
            )
            for phase in phases
        ]


@dataclass
class Course:
    """The progress of a job, as stored in the truth. Times are epoch seconds."""

    job_id: int | None
    restart: int
    application: str
    alone_s: float
    uuid: str
    pid: int
    began_s: float
    # Tuples of start, co-runners and speed.
    stretches: list[tuple[float, list[str], float]] = field(default_factory=list)
    ended_s: float | None = None
    # ``done``, ``out of memory``, or the name of a signal; None after SIGKILL.
    ended_by: str | None = None

    @property
    def slowdown(self) -> float | None:
        """Return the job's duration divided by its duration alone; None unless all work was done."""
        if self.ended_s is None or self.ended_by != "done":
            return None
        return (self.ended_s - self.began_s) / self.alone_s

    def write(self, directory: Path) -> None:
        """Write or replace the file."""
        name = f"{PREFIX}{self.job_id}-{self.restart}-{self.pid}.json"
        new = directory / f".{name}"
        new.write_text(json.dumps(asdict(self)) + "\n")
        new.replace(directory / name)


def courses(directory: Path) -> list[Course]:
    """Return all jobs with work in a lab, sorted by their start."""
    found = [Course(**json.loads(path.read_text())) for path in directory.glob(f"{PREFIX}*.json")]
    return sorted(found, key=lambda course: course.began_s)


@dataclass
class _Stretch:
    """A period in which speed and co-runners do not change."""

    slot: int
    points: tuple[Point, ...]
    # The work that was done before this stretch.
    done_s: float
    others: tuple[str, ...]
    speed: float

    def done_at(self, now_ns: int) -> float:
        return self.done_s + max(0, now_ns - self.points[0].time_ns) / 1e9 * self.speed


class Worker:
    """One job on one GPU; the caller repeats `turn` until it returns how the job ended."""

    def __init__(
        self,
        world: World,
        device: Device,
        work: Work,
        pid: int,
        lead_ns: int,
        truth_of: Callable[[tuple[Point, ...]], ProcessTruth],
        keep: Callable[[ProcessTruth], None],
        started: int | None = None,
    ) -> None:
        """Begin the work; each schedule starts ``lead_ns`` after its creation.

        ``truth_of`` creates the truth of a schedule, and ``keep`` stores it.
        """
        self._world, self._device, self._work, self._pid, self._lead_ns = world, device, work, pid, lead_ns
        self._keep, self._truth_of, self._started = keep, truth_of, started
        self._memory_mib = 0.0
        # The end of the last complete stretch.
        self.ended_ns = 0
        self.stretches: list[tuple[float, list[str], float]] = []
        self._now = self._begin(0.0, world.co_runners(device.target, pid))

    def turn(self) -> str | None:
        """Check the co-runners and return how the job ended, or None while it continues."""
        now_ns, stretch = self._world.now_ns(), self._now
        if now_ns >= stretch.points[-1].time_ns:
            self.end(stretch.points[-1].time_ns, "done")
            return "done"
        memory_mib = Part(stretch.points).line(now_ns, now_ns)[0].memory_mib
        grew, self._memory_mib = memory_mib > self._memory_mib, memory_mib
        available_mib = self._device.memory_mib - self._device.reserved_mib
        if grew and self._world.end_where_memory_is_out(self._device.target, stretch.slot, available_mib):
            self.end(self._world.now_ns(), OUT_OF_MEMORY)
            return OUT_OF_MEMORY
        others = self._world.co_runners(self._device.target, self._pid)
        if others != stretch.others and now_ns >= stretch.points[0].time_ns:
            self._change(others)
        return None

    def end(self, at_ns: int, how: str) -> None:
        """End the job, and record how it ended."""
        stretch = self._now
        self.ended_ns = at_ns
        self._world.end(stretch.slot, at_ns)
        self._keep(replace(self._truth_of(stretch.points), end_ns=at_ns, ended_by=how))

    def left_s(self) -> float:
        """Return the remaining time if nothing changes."""
        return max(0.0, (self._now.points[-1].time_ns - self._world.now_ns()) / 1e9)

    def _change(self, others: tuple[str, ...]) -> None:
        """Continue at another speed from the end of the old schedule."""
        before = self._now
        cut_ns = self._world.now_ns() + self._lead_ns
        if before.points[-1].time_ns <= cut_ns:
            return
        self.end(cut_ns, "others")
        self._now = self._begin(before.done_at(cut_ns), others, at_ns=cut_ns)

    def _begin(self, done_s: float, others: tuple[str, ...], at_ns: int | None = None) -> _Stretch:
        work = self._work
        speed = work.table.speed(work.application, others)
        slots, points = self._world.begin(
            [self._device.target],
            lambda: to_points(
                work.left(done_s, speed), self._world.now_ns() + self._lead_ns if at_ns is None else at_ns
            ),
            self._pid,
            self._started,
            activity=work.activity,
            mps=work.mps,
            application=work.application,
        )
        self._keep(self._truth_of(points))
        self.stretches.append((points[0].time_ns / 1e9, list(others), speed))
        return _Stretch(slots[0], points, done_s, others, speed)
