"""A Slurm that replays output recorded from real versions that ran the same jobs (tests/slurm/data)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import CommandClient

DATA = Path(__file__).parent / "data" / "22.05"
# The time of the recording of 22.05, which most tests use.
NOW_S = 1795263342
VERSIONS = {"22.05": "22.05.8", "24.11": "24.11.5", "26.05": "26.05.5"}

_FILES = (
    ("scontrol show config", "config.txt"),
    ("scontrol --all --details show node", "nodes.txt"),
    ("scontrol --all --oneliner show partition", "partitions.txt"),
    ("squeue ", "labels.txt"),
    ("sacct --helpformat", "sacct-helpformat.txt"),
    ("sacct --allusers", "sacct.txt"),
)


class RecordedSlurm:
    """A replacement for run_command that stores the commands and their environments."""

    def __init__(self, version: str = "22.05") -> None:
        self.data = DATA.parent / version
        self.commands: list[str] = []
        self.environ: Mapping[str, str] = {}

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        command = " ".join(argv)
        self.commands.append(command)
        self.environ = environ
        if command == "scontrol ping":
            return "Slurmctld(primary) at head is UP\n"
        # The recording has <MARK> instead of the requested delimiter.
        mark = re.search("<[0-9a-f]{16}>", command)
        return self._recording(command).replace("<MARK>", mark[0] if mark else "")

    def _recording(self, command: str) -> str:
        if match := re.fullmatch("scontrol --all --details show job ?([0-9]*)", command):
            path = self.data / (f"job-{match[1]}.txt" if match[1] else "jobs.txt")
            if path.exists():
                return path.read_text()
            whole = (self.data / "jobs.txt").read_text()
            if found := re.search(rf"^JobId={match[1]} .*?(?=\n\n(?:JobId=|\Z))", whole, re.M | re.S):
                return found[0]
            raise SlurmError(f"`{command}` failed (1): slurm_load_jobs error: Invalid job id specified")
        return (self.data / next(name for start, name in _FILES if command.startswith(start))).read_text()


def recorded_client(version: str = "22.05") -> CommandClient:
    """The command backend over a recorded Slurm."""
    return CommandClient(RecordedSlurm(version), {})
