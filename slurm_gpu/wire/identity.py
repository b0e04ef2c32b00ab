"""What records and host records have in common: whose watch it was, and when."""

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
"""Each field, none of which may be missing, and the check that it passes."""


def check_times(first_s: int, last_s: int) -> None:
    """Raises RecordError where the end lies before the beginning."""
    if last_s < first_s:
        raise RecordError(f"last_s: {last_s} lies before first_s {first_s}")
