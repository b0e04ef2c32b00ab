"""Define runs on a machine without Slurm, as reported by that machine: user, GPUs and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import fields

# The cluster of a machine without Slurm is this prefix and the node name.
HOST_CLUSTER = "host:"
_MAX_DEVICES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """A run with the key (cluster, job_id); the version with the greatest seq is current.

    `end_s` is None while the run continues.
    """

    cluster: str
    job_id: int
    node: str
    seq: int
    uid: int
    user: str
    start_s: int
    end_s: int | None = None
    devices: Sequence[str] = ()

    def ended(self, end_s: int) -> HostRun:
        """Return the run with an end time. The run can be resumed later."""
        return replace(self, seq=self.seq + 1, end_s=max(self.start_s, end_s))

    def resumed(self) -> HostRun:
        """Return the run without an end time."""
        return replace(self, seq=self.seq + 1, end_s=None)

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps without None values."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any, dropped: fields.Dropped | None = None) -> HostRun:
        """Return a validated run from decoded JSON, ignoring unknown fields.

        An invalid field, or a missing one except `end_s` and `devices`, raises RecordError, which names the
        field. If `dropped` is given, however, invalid `devices` are omitted and added to `dropped`.
        """
        required = _CHECKS.keys() - {"devices"}
        if isinstance(wire, dict) and wire.get("end_s") is None:
            required -= {"end_s"}
        run = cls(**fields.checked("a run", wire, _CHECKS, required, dropped))
        if run.cluster != HOST_CLUSTER + run.node:
            raise RecordError(
                f"cluster: {run.cluster!r} must be {HOST_CLUSTER}{run.node}; "
                "the runs of Slurm clusters are imported from slurmdbd"
            )
        if run.end_s is not None and run.end_s < run.start_s:
            raise RecordError(f"end_s: {run.end_s} is before start_s {run.start_s}")
        return run


def _devices(name: str, value: Any) -> Sequence[str]:
    if not isinstance(value, list) or len(value) > _MAX_DEVICES:
        raise RecordError(f"{name}: must be a list of at most {_MAX_DEVICES} devices")
    return tuple(fields.word(name, item) for item in value)


_CHECKS: fields.Checks = {
    **dict.fromkeys(("cluster", "node"), fields.word),
    "user": fields.text,
    "job_id": fields.job_number,
    **dict.fromkeys(("seq", "uid"), fields.whole),
    **dict.fromkeys(("start_s", "end_s"), fields.moment),
    "devices": _devices,
}
