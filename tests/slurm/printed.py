"""Rows as printed by sacct, with defaults for all columns that a test does not set."""

from collections.abc import Sequence

from slurm_gpu.slurm import sacct

MARK = "<0123456789abcdef>"
NAMES = sacct.columns("")
_PLAIN = {
    "JobID": "17",
    "Cluster": "lab",
    "JobIDRaw": "17",
    "JobName": "train",
    "User": "alice",
    "UID": "1001",
    "State": "COMPLETED",
    "Submit": "1780000000",
    "Eligible": "1780000000",
    "Start": "1780000060",
    "End": "1780000160",
    "ElapsedRaw": "100",
    "NNodes": "1",
    "NodeList": "n1",
    "AllocTRES": "cpu=1,gres/gpu=1,mem=1G",
}


def text_of(rows: Sequence[dict[str, str]], mark: str = MARK) -> str:
    """Return the text that sacct prints for rows; the default of a row is a job of 100 s with one GPU."""
    return "".join("".join(f"{(_PLAIN | row).get(name, '')}{mark}" for name in NAMES) + "\n" for row in rows)
