"""Describe in the terminal why a job is pending, its place in the queue and its expected start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.monitor.cluster.pending import Wait, find_job, wait_of
from slurm_gpu.text.cells import gpus, minute, moment, text
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.cluster import ClusterJob
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.forecast import Forecast


class PendingJob:
    """A pending job in Slurm's queue with its forecast, if slurm-gpudbd can make one."""

    def __init__(self, job: ClusterJob, wait: Wait, forecast: Forecast | None) -> None:
        self.job, self.wait, self.forecast = job, wait, forecast

    @classmethod
    def read(cls, database: DatabaseClient, job_id: str) -> PendingJob | None:
        """Return the job; None if it is not pending."""
        cluster = database.cluster()
        job = find_job(cluster, job_id)
        wait = None if job is None else wait_of(cluster, job)
        if job is None or wait is None:
            return None
        try:
            found = database.forecast(job_id)
        except (OutsideError, UsageError):  # for example, the job has just started
            found = ""
        return cls(job, wait, None if isinstance(found, str) else found)

    def lines(self, zone: ZoneInfo) -> Iterator[str]:
        """Yield lines about the wait, with times in `zone`."""
        wait = self.wait
        yield f"  waits     {wait.reason}" + ("" if wait.meaning is None else f": {wait.meaning}")
        if self.job.dependency:
            yield f"  depends   {text(self.job.dependency)}"
        if wait.place is not None:
            yield f"  place     {self._place()}"
        starts = [] if wait.start_s is None else [f"{minute(wait.start_s, zone)} (Slurm's estimate)"]
        if (forecast := self.forecast) is not None:
            lower, median, upper = (
                minute(forecast.at_s + seconds, zone)
                for seconds in (forecast.lower_s, forecast.median_s, forecast.upper_s)
            )
            guess = "" if forecast.judged else ", not validated: too few jobs waited recently"
            starts.append(f"between {lower} and {upper}, most likely {median} (forecast{guess})")
        if not starts:
            starts = ["unknown: Slurm has not estimated the start yet"]
        for label, line in zip(("starts", "or"), starts, strict=False):
            yield f"  {label:<9} {line}"

    def _place(self) -> str:
        wait, partitions = self.wait, self.job.partition
        where = "the job's partitions" if "," in partitions else f"partition {text(partitions)}"
        if wait.n_jobs == self.job.n_tasks:
            return f"no other job is pending in {where}"
        place = f"{wait.place} of {wait.n_jobs:,} pending jobs in {where}"
        if wait.place is None or wait.place == 1:
            return place
        ahead = f"{place}, behind {counted(wait.place - 1, 'job')}"
        return ahead if wait.gpus_ahead is None else f"{ahead}, which request {gpus(wait.gpus_ahead)}"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object described in docs/commands.md."""
        job, wait = self.job, self.wait
        return {
            "id": job.id,
            "reason": wait.reason,
            "meaning": wait.meaning,
            "dependency": job.dependency or None,
            "place": wait.place,
            "n_jobs": wait.n_jobs,
            "gpus_ahead": wait.gpus_ahead,
            "start_s": wait.start_s,
            "forecast": None if self.forecast is None else to_json(self.forecast),
        }


def header_lines(job: ClusterJob, zone: ZoneInfo) -> Iterator[str]:
    """Yield lines about a pending job that Slurm's accounting does not contain yet."""
    yield f"Job {job.id} {text(job.name) if job.name else ''}".rstrip() + f"  {job.state}"
    yield f"  {text(job.user)} in {text(job.account)}, partition {text(job.partition)}, QOS {text(job.qos)}"
    requested = "an unknown number of GPUs" if job.n_gpus is None else gpus(job.n_gpus)
    tasks = f" for each of {counted(job.n_tasks, 'task')}" if job.n_tasks > 1 else ""
    yield f"  not started yet; requests {requested} on {counted(job.n_nodes, 'node')}{tasks}"
    if job.submit_s is not None:
        yield f"  submitted {moment(job.submit_s, zone)}"
