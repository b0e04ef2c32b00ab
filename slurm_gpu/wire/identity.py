"""The identity fields of records and host records: job, node, segment and time."""

from __future__ import annotations

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import fields

IDENTITY: fields.Checks = {
    **dict.fromkeys(("cluster", "node", "boot_id"), fields.word),
    **dict.fromkeys(("job_id", "restart"), fields.job_number),
    "seq": fields.whole,
    **dict.fromkeys(("prolog_s", "first_s", "last_s"), fields.moment),
    "segment": fields.segment,
    "final": fields.flag,
}
"""Maps each required field to its check."""


def check_times(first_s: int, last_s: int) -> None:
    """Raise RecordError if the end is before the start."""
    if last_s < first_s:
        raise RecordError(f"last_s: {last_s} is before first_s {first_s}")
