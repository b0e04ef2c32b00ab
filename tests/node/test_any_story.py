"""Jobs begin, end, share and are requeued while slurm-gpud dies, its clock is set and the driver goes away.

Whatever the story, a run's records tell what it did while somebody watched, nothing of anybody else's, and
what they leave out is no more than the outages.
"""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_gpu.records import Record
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine

# Two GPUs: one that a single job holds, and one that is shared by two.
SLOTS = {0: 0, 1: 1, 2: 1}
PERCENT = (0.0, 7.0, 23.0, 40.0)
# A tick of the driver's ring, and the sample in which a job begins or ends.
TICK_S = 1 / 6
# What is lost with a process that is killed, at most: since the last checkpoint.
CHECKPOINT_S = 10.0
# A clock that was set makes the ring worthless until it is read again; and so does each beginning.
CLOCK_GAP_S, BEGIN_GAP_S = 2.0, 2.0
SETTLED_S = 2.0
# No job is over as fast as /proc/uptime counts.
SHORTEST_S = 0.05
DRIVER_STARTS_S = 15.0
STORIES = int(os.environ.get("SLURM_GPU_TEST_STORIES", "60"))

Step = tuple[Any, ...]
"""What happens, and the arguments of Story's method of that name."""


@dataclass
class Hold:
    """A run on its GPU: the truth."""

    job_id: int
    restart: int
    gpu: FakeGpu
    start_s: float
    percent: float
    end_s: float = math.inf
    away_s: float = 0.0
    kills: int = 0
    clock_sets: int = 0
    neighbours: int = 0


@dataclass
class Story:
    """A node, and all that happened there."""

    machine: Machine
    holds: list[Hold] = field(default_factory=list)
    open: dict[int, Hold] = field(default_factory=dict)
    next_job: int = 1
    driver_at_s: float = -math.inf

    @property
    def clock(self) -> FakeClock:
        return self.machine.clock

    @property
    def is_watched(self) -> bool:
        reader = self.machine.reader
        return self.machine.node is not None and not reader.starting

    def wait(self, seconds: float) -> None:
        reader = self.machine.reader
        if reader.starting and (left_s := self.driver_at_s - self.clock.now_s) <= seconds:
            self._go_on(max(0.0, left_s))
            reader.starting = False
            seconds -= max(0.0, left_s)
        self._go_on(seconds)

    def _go_on(self, seconds: float) -> None:
        if not self.is_watched:
            for hold in self.open.values():
                hold.away_s += seconds
        self.machine.run(seconds)

    def begin(self, slot: int, percent: float, *, job_id: int | None = None, restart: int = 0) -> None:
        if slot in self.open:
            return
        if job_id is None:
            job_id, self.next_job = self.next_job, self.next_job + 1
        gpu = self.machine.gpus[SLOTS[slot]]
        hold = Hold(job_id, restart, gpu, self.clock.now_s, percent)
        for other in self.open.values():
            if other.gpu is gpu:
                other.neighbours += 1
                hold.neighbours += 1
        self.open[slot] = hold
        self.holds.append(hold)
        gpu.work.append(Work(job_id, hold.start_s, math.inf, percent, GIB, restart))
        self.machine.hook("prolog", job_id, str(SLOTS[slot]), restart=restart)
        self.wait(SHORTEST_S)

    def end(self, slot: int, *, requeued: bool = False) -> Hold | None:
        hold = self.open.pop(slot, None)
        if hold is None:
            return None
        hold.end_s = self.clock.now_s
        gpu = hold.gpu
        gpu.work = [
            replace(work, end_s=hold.end_s)
            if (work.job_id, work.number) == (hold.job_id, hold.restart)
            else work
            for work in gpu.work
        ]
        restart = hold.restart + 1 if requeued else hold.restart
        self.machine.hook("epilog", hold.job_id, str(SLOTS[slot]), restart=restart)
        return hold

    def requeue(self, slot: int, percent: float, pause_s: float) -> None:
        hold = self.end(slot, requeued=True)
        if hold is not None:
            self.wait(pause_s)
            self.begin(slot, percent, job_id=hold.job_id, restart=hold.restart + 1)

    def leave(self, killed: bool) -> None:
        if self.machine.node is None:
            return
        if not killed:
            self.machine.node.stop()
        for hold in self.holds:  # of one that ended just now the last samples are not there yet
            if hold.end_s > self.clock.now_s - SETTLED_S:
                hold.kills += 1
        self.machine.kill()

    def come(self, driver_starts: bool) -> None:
        if self.machine.node is None:
            self.machine.reader.starting = driver_starts
            self.driver_at_s = self.clock.now_s + DRIVER_STARTS_S
            self.machine.start()

    def set_clock(self, by_s: float) -> None:
        self.clock.offset_s += by_s
        for hold in self.open.values():
            hold.clock_sets += 1

    def over(self) -> None:
        self.come(False)
        self.wait(20.0)
        for slot in list(self.open):
            self.end(slot)
        self.wait(25.0)

    def records(self, hold: Hold) -> list[Record]:
        """Of that run, in order of time."""
        return sorted(
            (
                r
                for r in self.machine.records(final=None)
                if (r.job_id, r.restart) == (hold.job_id, hold.restart)
            ),
            key=lambda r: (r.uptime_s, r.held_s),
        )


def _steps(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), *arguments)


_slots, _percents = st.sampled_from(sorted(SLOTS)), st.sampled_from(PERCENT)
_steps_of_all_kinds = st.one_of(
    _steps("wait", st.sampled_from([0.05, 0.3, 1.0, 4.0, 15.0, 40.0])),
    _steps("begin", _slots, _percents),
    _steps("end", _slots),
    _steps("requeue", _slots, _percents, st.sampled_from([0.02, 1.0, 5.0])),
    _steps("leave", st.booleans()),
    _steps("come", st.booleans()),
    _steps("set_clock", st.sampled_from([-90.0, -2.0, 0.2, 5.0, 100.0])),
)


@settings(max_examples=STORIES, deadline=None)
@given(st.lists(_steps_of_all_kinds, min_size=3, max_size=30))
# The run before ended just before slurm-gpud did.
@example([("begin", 0, 0.0), ("requeue", 0, 0.0, 1.0), ("leave", False)])
# It comes back twice before the driver answers.
@example(
    [("leave", True), ("begin", 0, 0.0), ("requeue", 0, 0.0, 1.0), *[("come", True), ("leave", True)] * 2]
)
def test_whatever_happens_a_record_is_the_truth_less_the_outages(told: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = FakeClock()
        gpus = [FakeGpu(clock, f"GPU-{n}", n) for n in (0, 1)]
        machine = Machine(Path(directory), *gpus)
        machine.start()
        story = Story(machine)
        story.wait(5.0)
        for name, *arguments in told:
            getattr(story, name)(*arguments)
        story.over()
        known = {(hold.job_id, hold.restart) for hold in story.holds}
        assert {(r.job_id, r.restart) for r in machine.records(final=None)} == known
        for hold in story.holds:
            check(hold, story.records(hold))
        assert machine.hook_files() == []
        machine.kill()


def check(hold: Hold, records: list[Record]) -> None:
    """These are all records of that run."""
    length_s = hold.end_s - hold.start_s
    assert {record.device for record in records} == {hold.gpu.uuid}
    assert records[-1].final
    until_s = hold.start_s - 0.02
    for record in records:
        assert record.uptime_s is not None
        assert record.uptime_s >= until_s - 1e-3, "two watches of one device do not overlap"
        until_s = record.uptime_s + record.held_s
        assert record.sampled_s <= record.held_s + 0.01
    assert until_s <= hold.end_s + 0.02
    assert abs(until_s - hold.end_s) <= 0.02, "held to the epilog"
    sampled_s = sum(record.sampled_s for record in records)
    lost_s = (
        hold.away_s + hold.kills * (CHECKPOINT_S + BEGIN_GAP_S) + hold.clock_sets * CLOCK_GAP_S + BEGIN_GAP_S
    )
    assert sampled_s >= length_s - lost_s, "what was watched is counted"
    done = told_s = 0.0
    for record in records:
        for percent, ms in (record.util_hist_ms or {}).items():
            done += percent * ms / 1000
            told_s += ms / 1000
    boundaries = 1 + len(records) + hold.neighbours + hold.clock_sets
    slack = 100 * 2 * TICK_S * boundaries + 0.5 * told_s
    assert abs(done - hold.percent * told_s) <= slack, "what it did, and not what others did"
    energy_s = sum(record.energy_j.seconds for record in records if record.energy_j is not None)
    energy_j = sum(record.energy_j.total for record in records if record.energy_j is not None)
    assert energy_s <= length_s + 0.1
    assert abs(energy_j - 100 * energy_s) <= 15 * boundaries
