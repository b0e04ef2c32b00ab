"""A node on which anything may happen, what really did, and what the records have to tell of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from slurm_gpu.wire import Record
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
# slurm-gpudbd answers so often; it takes a job for over after so long, and believes a new one told twice.
ANSWER_S, OVER_S, BELIEVED_S = 10.0, 120.0, 32.0


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
    epilog_lost: bool = False
    prolog_unseen: bool = False
    # For so long its end was not known when slurm-gpud, which cannot look back then, was restarted.
    unknown_s: float = 0.0


@dataclass
class Story:
    """A node, and all that happened there."""

    machine: Machine
    holds: list[Hold] = field(default_factory=list)
    open: dict[int, Hold] = field(default_factory=dict)
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
            self._go_on(max(0.0, left_s))
            reader.starting = False
            seconds -= max(0.0, left_s)
        self._go_on(seconds)

    def _go_on(self, seconds: float) -> None:
        if not self.is_watched:
            for hold in self.open.values():
                hold.away_s += seconds
        until_s = self.clock.now_s + seconds
        while self.answer_s <= until_s:
            self.machine.run_until(self.answer_s)
            self._answer()
            self.answer_s = max(self.clock.now_s, self.answer_s) + ANSWER_S
        self.machine.run_until(until_s)

    def _answer(self) -> None:
        """What slurm-gpudbd says: who runs here, and who has not for a while."""
        node, wall_s = self.machine.node, self.clock.wall()
        if node is None:
            return
        node.update_jobs(
            {
                hold.job_id: {
                    "restart": hold.restart,
                    "start_s": int(wall_s - self.clock.now_s + hold.start_s),
                    "uid": 1001,
                    "state": "RUNNING",
                    "gpu_index": {"gpu": [SLOTS[slot]]},
                    "granted_mgpu": 1000,
                    "age_s": 0.5,
                }
                for slot, hold in self.open.items()
            }
        )
        over = [hold for hold in self.holds if hold.epilog_lost and hold.end_s < self.clock.now_s - OVER_S]
        open_jobs = node.open_jobs()
        node.end_jobs(
            {
                hold.job_id: {
                    "restart": hold.restart,
                    "end_s": int(wall_s - self.clock.now_s + hold.end_s),
                }
                for hold in over
                if hold.job_id in open_jobs
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
        hold = Hold(job_id, restart, gpu, self.clock.now_s, percent, prolog_unseen=not seen)
        for other in self.open.values():
            if other.gpu is gpu:
                other.neighbours += 1
                hold.neighbours += 1
        self.open[slot] = hold
        self.holds.append(hold)
        gpu.work.append(Work(job_id, hold.start_s, math.inf, percent, GIB, restart))
        if seen:
            self.machine.hook("prolog", job_id, str(SLOTS[slot]), restart=restart)
        self.wait(SHORTEST_S)

    def end(self, slot: int, *, requeued: bool = False, seen: bool = True) -> Hold | None:
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
        hold.epilog_lost = not seen
        if seen:
            self.machine.hook("epilog", hold.job_id, str(SLOTS[slot]), restart=restart)
        return hold

    def lose_epilog(self, slot: int) -> None:
        """It ends, and no hook tells."""
        self.end(slot, seen=False)

    def requeue_unseen(self, slot: int, percent: float, pause_s: float) -> None:
        """Slurm runs no prolog for a job that has just ended there."""
        self.requeue(slot, percent, pause_s, seen=False)

    def requeue(self, slot: int, percent: float, pause_s: float, *, seen: bool = True) -> None:
        hold = self.end(slot, requeued=True)
        if hold is not None:
            self.wait(pause_s)
            self.begin(slot, percent, job_id=hold.job_id, restart=hold.restart + 1, seen=seen)

    def leave(self, killed: bool) -> None:
        if self.machine.node is None:
            return
        # Who comes back then does not know that there may be one of whom only Slurm tells.
        open_jobs = self.machine.node.open_jobs()
        if any(hold.prolog_unseen and hold.job_id not in open_jobs for hold in self.open.values()):
            return
        if not killed:
            self.machine.node.stop()
        for hold in self.holds:  # of one that ended just now the last samples are not there yet
            if hold.end_s > self.clock.now_s - SETTLED_S:
                hold.kills += 1
            if hold.epilog_lost and hold.job_id in self.machine.node.open_jobs():
                hold.unknown_s = self.clock.now_s - hold.end_s
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
        self.wait(BELIEVED_S)
        for slot in list(self.open):
            self.end(slot)
        lost_s = [hold.end_s for hold in self.holds if hold.epilog_lost]
        self.wait(max(25.0, max(lost_s, default=-math.inf) + OVER_S + 2 * ANSWER_S - self.clock.now_s))

    def records(self, hold: Hold) -> list[Record]:
        """Of that run, in order of time."""
        return sorted(
            (
                r
                for r in self.machine.records(final=None)
                if (r.job_id, r.restart) == (hold.job_id, hold.restart)
            ),
            key=lambda r: (r.uptime_s, r.allocated_s),
        )


def check(hold: Hold, records: list[Record]) -> None:
    """These are all records of that run, and tell the truth."""
    length_s = hold.end_s - hold.start_s
    lost_s = hold.away_s + hold.kills * (CHECKPOINT_S + BEGIN_GAP_S) + hold.clock_sets * CLOCK_GAP_S
    lost_s += BEGIN_GAP_S + BELIEVED_S * hold.prolog_unseen + CHECKPOINT_S * hold.epilog_lost
    if not records:
        assert hold.prolog_unseen
        assert length_s <= lost_s
        return
    assert {record.device for record in records} == {hold.gpu.uuid}
    assert records[-1].final
    until_s = hold.start_s - 0.02
    for record in records:
        assert record.uptime_s is not None
        assert record.uptime_s >= until_s - 1e-3, "two watches of one device do not overlap"
        # Else it may have been begun before Slurm told that its run was over by then.
        if record.allocated_s > 0 or not hold.epilog_lost:
            until_s = record.uptime_s + record.allocated_s
        assert record.sampled_s <= record.allocated_s + 0.01
    # Slurm tells an end in whole seconds.
    early_s = 1.02 if hold.epilog_lost else 0.02
    late_s = hold.unknown_s + 0.02
    assert -early_s <= until_s - hold.end_s <= late_s, "held to the end"
    sampled_s = sum(record.sampled_s for record in records)
    assert sampled_s >= length_s - lost_s, "what was watched is counted"
    done = reported_at_s = 0.0
    for record in records:
        for percent, ms in (record.util_hist_ms or {}).items():
            done += percent * ms / 1000
            reported_at_s += ms / 1000
    boundaries = 1 + len(records) + hold.neighbours + hold.clock_sets
    slack = 100 * 2 * TICK_S * boundaries + 0.5 * reported_at_s
    assert done <= hold.percent * min(reported_at_s, length_s) + slack, "nothing of what others did"
    assert done >= hold.percent * (reported_at_s - hold.unknown_s) - slack, "what it did"
    energy_s = sum(record.energy_j.seconds for record in records if record.energy_j is not None)
    energy_j = sum(record.energy_j.total for record in records if record.energy_j is not None)
    assert energy_s <= length_s + hold.unknown_s + 0.1
    assert abs(energy_j - 100 * energy_s) <= 15 * boundaries
