"""Track requeued jobs, which Slurm may start again on this node without a prolog (docs/design.md)."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_gpu.clock import Clock
from slurm_gpu.node.allocation.hooks import HookEvent
from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName

POLL_S = 1.0
# Slurm restarts a requeued job at once or after two minutes; a longer wait means that other jobs run first.
_RETURNS_WITHIN_S = 600.0


@dataclass(slots=True)
class RequeuedJob:
    """A requeued job; times are from Clock.monotonic().

    `restart` is the restart count of the next run. `absent_s` is the last time when the job had no cgroup
    here, and `began_s` is the time when its new cgroup was created.
    """

    name: JobName
    restart: int
    until_s: float
    absent_s: float | None = None
    began_s: float | None = None


class RequeuedJobs:
    """The jobs that were requeued here and may return; a new cgroup shows that a job has returned."""

    def __init__(self, cgroups: JobCgroups, clock: Clock) -> None:
        self._cgroups, self._clock = cgroups, clock
        self._expected: dict[int, RequeuedJob] = {}
        self._poll_at_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._expected)

    def expect(self, epilog: HookEvent) -> None:
        """Expect the job to return; its epilog contains the restart count of the next run."""
        name = JobName(epilog.job_id, epilog.uid, epilog.sluid)
        until_s = self._clock.monotonic() + _RETURNS_WITHIN_S
        self._expected[epilog.job_id] = RequeuedJob(name, epilog.restart, until_s)
        self._poll_at_s = 0.0

    def is_expected(self, job_id: int) -> bool:
        """Return whether the job was requeued and its next run is not recorded yet."""
        return job_id in self._expected

    def began_s(self, job_id: int) -> float | None:
        """Return the time when an expected job started again, or None if it has not returned."""
        job = self._expected.get(job_id)
        return None if job is None else job.began_s

    def is_seen(self, job_id: int) -> bool:
        """Return whether an expected job has returned."""
        return self.began_s(job_id) is not None

    def restart(self, job_id: int) -> int:
        """Return the restart count of the job's expected run, or 0 if none is expected."""
        job = self._expected.get(job_id)
        return 0 if job is None else job.restart

    def pop(self, job_id: int) -> RequeuedJob | None:
        """Return and remove an expected job."""
        return self._expected.pop(job_id, None)

    def overdue(self) -> list[int]:
        """Return the IDs of the jobs that were not recorded again in time."""
        now_s = self._clock.monotonic()
        return [job_id for job_id, job in self._expected.items() if now_s >= job.until_s]

    @property
    def next_poll_s(self) -> float | None:
        """Return when to poll again (Clock.monotonic()), or None if all expected jobs have returned."""
        return self._poll_at_s if any(job.began_s is None for job in self._expected.values()) else None

    def may_run_with(self, job_id: int) -> bool:
        """Return whether another expected job may be running here now, which requires a cgroup."""
        before_s = self._clock.monotonic()
        self._poll_at_s = 0.0
        self.poll()
        return any(
            other != job_id and (job.began_s is not None or job.absent_s is None or job.absent_s < before_s)
            for other, job in self._expected.items()
        )

    def poll(self) -> None:
        """If a check is due, check which jobs have a cgroup again."""
        now_s = self._clock.monotonic()
        if now_s < self._poll_at_s:
            return
        self._poll_at_s = now_s + POLL_S
        for job in self._expected.values():
            if job.began_s is not None:
                continue
            age_s = self._cgroups.age_s(job.name, self._clock.wall())
            if age_s is None:
                job.absent_s = now_s
            # Until the job has once had no cgroup, the cgroup may belong to the earlier run.
            elif job.absent_s is not None:
                job.began_s = min(now_s, max(job.absent_s, now_s - age_s))
