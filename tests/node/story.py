"""A node with random events, the truth about them, and a check of the records against it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from slurm_gpu.wire import Record
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine

# One GPU is allocated to a single job, and two jobs share the other.
SLOTS = {0: 0, 1: 1, 2: 1}
PERCENT = (0.0, 7.0, 23.0, 40.0)
# The durations of a tick of the driver's ring, and of the sample in which a job begins or ends.
TICK_S = 1 / 6
# A kill loses at most the time since the last checkpoint.
CHECKPOINT_S = 10.0
# After a clock step, and at each start, the ring is useless until it is read again.
CLOCK_GAP_S, BEGIN_GAP_S = 2.0, 2.0
SETTLED_S = 2.0
# No job is shorter than the resolution of /proc/uptime.
SHORTEST_S = 0.05
DRIVER_STARTS_S = 15.0
# The interval of slurm-gpudbd's answers, the delay until it reports a job as ended, and the time until
# a run without a prolog is accepted after two reports.
ANSWER_S, ENDED_S, ACCEPTED_S = 10.0, 120.0, 32.0


@dataclass
class StoryRun:
    """The truth about a run on its GPU."""

    job_id: int
    restart: int
    gpu: FakeGpu
    start_s: float
    percent: float
    end_s: float = math.inf
    unwatched_s: float = 0.0
    kills: int = 0
    clock_sets: int = 0
    neighbours: int = 0
    epilog_lost: bool = False
    prolog_unseen: bool = False
    # The seconds from the run's unreported end to a restart of slurm-gpud, which cannot measure them later.
    unknown_s: float = 0.0


@dataclass
class Story:
    """A node and everything that happened on it."""

    machine: Machine
    runs: list[StoryRun] = field(default_factory=list)
    open: dict[int, StoryRun] = field(default_factory=dict)
    next_job: int = 1
    driver_at_s: float = -math.inf
    answer_s: float = 0.0

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
            self._advance(max(0.0, left_s))
            reader.starting = False
            seconds -= max(0.0, left_s)
        self._advance(seconds)

    def _advance(self, seconds: float) -> None:
        if not self.is_watched:
            for run in self.open.values():
                run.unwatched_s += seconds
        until_s = self.clock.now_s + seconds
        while self.answer_s <= until_s:
            self.machine.run_until(self.answer_s)
            self._answer()
            self.answer_s = max(self.clock.now_s, self.answer_s) + ANSWER_S
        self.machine.run_until(until_s)

    def _answer(self) -> None:
        """Deliver an answer of slurm-gpudbd: the running jobs, and jobs that ended ENDED_S ago or earlier."""
        node, wall_s = self.machine.node, self.clock.wall()
        if node is None:
            return
        node.update_jobs(
            {
                run.job_id: {
                    "restart": run.restart,
                    "start_s": int(wall_s - self.clock.now_s + run.start_s),
                    "uid": 1001,
                    "state": "RUNNING",
                    "gpu_index": {"gpu": [SLOTS[slot]]},
                    "granted_mgpu": 1000,
                    "age_s": 0.5,
                }
                for slot, run in self.open.items()
            }
        )
        ended = [run for run in self.runs if run.epilog_lost and run.end_s < self.clock.now_s - ENDED_S]
        open_jobs = node.open_jobs()
        node.end_jobs(
            {
                run.job_id: {
                    "restart": run.restart,
                    "end_s": int(wall_s - self.clock.now_s + run.end_s),
                }
                for run in ended
                if run.job_id in open_jobs
            }
        )
        self.machine.due_s = node.due_s()

    def begin(
        self,
        slot: int,
        percent: float,
        *,
        job_id: int | None = None,
        restart: int = 0,
        seen: bool = True,
    ) -> None:
        if slot in self.open:
            return
        if job_id is None:
            job_id, self.next_job = self.next_job, self.next_job + 1
        gpu = self.machine.gpus[SLOTS[slot]]
        run = StoryRun(job_id, restart, gpu, self.clock.now_s, percent, prolog_unseen=not seen)
        for other in self.open.values():
            if other.gpu is gpu:
                other.neighbours += 1
                run.neighbours += 1
        self.open[slot] = run
        self.runs.append(run)
        gpu.work.append(Work(job_id, run.start_s, math.inf, percent, GIB, restart))
        if seen:
            self.machine.hook("prolog", job_id, str(SLOTS[slot]), restart=restart)
        self.wait(SHORTEST_S)

    def end(self, slot: int, *, requeued: bool = False, seen: bool = True) -> StoryRun | None:
        run = self.open.pop(slot, None)
        if run is None:
            return None
        run.end_s = self.clock.now_s
        gpu = run.gpu
        gpu.work = [
            replace(work, end_s=run.end_s)
            if (work.job_id, work.number) == (run.job_id, run.restart)
            else work
            for work in gpu.work
        ]
        restart = run.restart + 1 if requeued else run.restart
        run.epilog_lost = not seen
        if seen:
            self.machine.hook("epilog", run.job_id, str(SLOTS[slot]), restart=restart)
        return run

    def lose_epilog(self, slot: int) -> None:
        """End the run without an epilog."""
        self.end(slot, seen=False)

    def requeue_unseen(self, slot: int, percent: float, pause_s: float) -> None:
        """Requeue the job without a prolog, as Slurm may do if the job has just ended on the same node."""
        self.requeue(slot, percent, pause_s, seen=False)

    def requeue(self, slot: int, percent: float, pause_s: float, *, seen: bool = True) -> None:
        run = self.end(slot, requeued=True)
        if run is not None:
            self.wait(pause_s)
            self.begin(slot, percent, job_id=run.job_id, restart=run.restart + 1, seen=seen)

    def stop(self, killed: bool) -> None:
        if self.machine.node is None:
            return
        # A restarted slurm-gpud has no trace of a run that only Slurm has reported.
        open_jobs = self.machine.node.open_jobs()
        if any(run.prolog_unseen and run.job_id not in open_jobs for run in self.open.values()):
            return
        if not killed:
            self.machine.node.stop()
        for run in self.runs:  # the last samples of a run that has just ended are missing
            if run.end_s > self.clock.now_s - SETTLED_S:
                run.kills += 1
            if run.epilog_lost and run.job_id in self.machine.node.open_jobs():
                run.unknown_s = self.clock.now_s - run.end_s
        self.machine.kill()

    def start(self, driver_starts: bool) -> None:
        if self.machine.node is None:
            self.machine.reader.starting = driver_starts
            self.driver_at_s = self.clock.now_s + DRIVER_STARTS_S
            self.machine.start()

    def set_clock(self, by_s: float) -> None:
        self.clock.offset_s += by_s
        for run in self.open.values():
            run.clock_sets += 1

    def finish(self) -> None:
        self.start(False)
        self.wait(ACCEPTED_S)
        for slot in list(self.open):
            self.end(slot)
        lost_s = [run.end_s for run in self.runs if run.epilog_lost]
        self.wait(max(25.0, max(lost_s, default=-math.inf) + ENDED_S + 2 * ANSWER_S - self.clock.now_s))

    def records(self, run: StoryRun) -> list[Record]:
        """Return the records of a run in order of time."""
        return sorted(
            (
                r
                for r in self.machine.records(final=None)
                if (r.job_id, r.restart) == (run.job_id, run.restart)
            ),
            key=lambda r: (r.uptime_s, r.allocated_s),
        )


def check(run: StoryRun, records: list[Record]) -> None:
    """Check that the records of a run are complete and agree with the truth."""
    length_s = run.end_s - run.start_s
    lost_s = run.unwatched_s + run.kills * (CHECKPOINT_S + BEGIN_GAP_S) + run.clock_sets * CLOCK_GAP_S
    lost_s += BEGIN_GAP_S + ACCEPTED_S * run.prolog_unseen + CHECKPOINT_S * run.epilog_lost
    if not records:
        assert run.prolog_unseen
        assert length_s <= lost_s
        return
    assert {record.device for record in records} == {run.gpu.uuid}
    assert records[-1].final
    until_s = run.start_s - 0.02
    for record in records:
        assert record.uptime_s is not None
        assert record.uptime_s >= until_s - 1e-3, "two segments of one device overlap"
        # Otherwise the segment may have begun before Slurm reported the end of its run.
        if record.allocated_s > 0 or not run.epilog_lost:
            until_s = record.uptime_s + record.allocated_s
        assert record.sampled_s <= record.allocated_s + 0.01
    # Slurm reports ends in whole seconds.
    early_s = 1.02 if run.epilog_lost else 0.02
    late_s = run.unknown_s + 0.02
    assert -early_s <= until_s - run.end_s <= late_s, "wrong end of the allocation"
    sampled_s = sum(record.sampled_s for record in records)
    assert sampled_s >= length_s - lost_s, "watched time is missing"
    done = reported_at_s = 0.0
    for record in records:
        for percent, ms in (record.util_hist_ms or {}).items():
            done += percent * ms / 1000
            reported_at_s += ms / 1000
    boundaries = 1 + len(records) + run.neighbours + run.clock_sets
    slack = 100 * 2 * TICK_S * boundaries + 0.5 * reported_at_s
    assert done <= run.percent * min(reported_at_s, length_s) + slack, "activity of other jobs is counted"
    assert done >= run.percent * (reported_at_s - run.unknown_s) - slack, "activity of the job is missing"
    energy_s = sum(record.energy_j.seconds for record in records if record.energy_j is not None)
    energy_j = sum(record.energy_j.total for record in records if record.energy_j is not None)
    assert energy_s <= length_s + run.unknown_s + 0.1
    assert abs(energy_j - 100 * energy_s) <= 15 * boundaries
