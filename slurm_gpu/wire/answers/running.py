"""What GET /v1/running answers with, as the client hands it out: docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from slurm_gpu.errors import DatabaseError

_SAME_START_S = 2
"""Slurm's clock and slurm-gpudbd's tell of one start so much apart at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningUse:
    """How a job that runs has used its GPUs since it began; None: not measured."""

    job_id: int
    start_s: int
    coverage: float
    """Sampled seconds over those that its devices were held, up to their newest records."""
    used: bool | None
    """Whether any of its GPUs has ever computed."""
    util_p25: float | None
    util_p95: float | None
    mem_p25: float | None
    mem_p95: float | None
    unused_devices: Sequence[str] = ()
    """UUIDs of those that never computed, where others of the job did; none of which little was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentXid:
    """An error that a GPU reported while a job held it."""

    job_id: int
    device: str
    at_s: int
    code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Of all jobs that run."""

    as_of_s: float
    jobs: Sequence[RunningUse]
    xids: Sequence[RecentXid]

    def uses_of(self, starts: Mapping[int, float | None]) -> dict[int, RunningUse]:
        """By job, of the runs that began when `starts` says: nothing of a requeued job's earlier run."""
        return {
            use.job_id: use
            for use in self.jobs
            if (start_s := starts.get(use.job_id)) is not None and abs(use.start_s - start_s) <= _SAME_START_S
        }

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read an answer; keys that a newer version adds are left. Raises DatabaseError."""
        try:
            return cls(
                as_of_s=value["as_of_s"],
                jobs=tuple(RunningUse(**_with_devices(item)) for item in value["jobs"]),
                xids=tuple(RecentXid(**{name: item[name] for name in _OF_AN_XID}) for item in value["xids"]),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise DatabaseError(
                f"slurm-gpudbd answered running jobs that cannot be read: {error!r}"
            ) from error


def _with_devices(item: Mapping[str, Any]) -> dict[str, Any]:
    """An older slurm-gpudbd does not tell which devices were never used."""
    told = {"unused_devices": (), **item}
    return {name: told[name] for name in _OF_A_JOB} | {"unused_devices": tuple(told["unused_devices"])}


_OF_A_JOB, _OF_AN_XID = (tuple(f.name for f in fields(kind)) for kind in (RunningUse, RecentXid))
