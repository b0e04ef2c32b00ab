"""A run on a machine without Slurm, of which its node alone can tell: who was on which GPUs, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import fields

HOST_CLUSTER = "host:"
"""What the cluster of such a machine begins with; its node's name follows."""
_MAX_DEVICES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """Key (cluster, job_id); the greatest seq counts. `end_s` is None while it goes on."""

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
        """The same run, over; it may go on later."""
        return replace(self, seq=self.seq + 1, end_s=max(self.start_s, end_s))

    def resumed(self) -> HostRun:
        """The same run, which goes on."""
        return replace(self, seq=self.seq + 1, end_s=None)

    def to_wire(self) -> dict[str, Any]:
        """A dict that json.dumps takes; gaps are left out."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any, dropped: fields.Dropped | None = None) -> HostRun:
        """Check and build from decoded JSON, unknown fields ignored; raises RecordError naming the field.

        A wrong `devices` is left out and added to `dropped`, where that is given; without its end, or the
        user, a run would be another one.
        """
        required = _CHECKS.keys() - {"devices"}
        if isinstance(wire, dict) and wire.get("end_s") is None:
            required -= {"end_s"}
        run = cls(**fields.checked("a run", wire, _CHECKS, required, dropped))
        if run.cluster != HOST_CLUSTER + run.node:
            raise RecordError(
                f"cluster: {run.cluster!r} must be {HOST_CLUSTER}{run.node}; Slurm tells its own runs"
            )
        if run.end_s is not None and run.end_s < run.start_s:
            raise RecordError(f"end_s: {run.end_s} lies before start_s {run.start_s}")
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
