"""How often Slurm was asked, and for how long: the watcher has to be kind to slurmctld, and to prove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.clock import Clock
from slurm_gpu.slurm.commands import CommandRunner, run_command

_ASK_NO_DAEMON = (["--version"], ["--helpFormat"])


@dataclass(slots=True)
class CallStatistics:
    """Of one of Slurm's commands; each asks a daemon once, but squeue asks for jobs and for partitions."""

    n: int = 0
    failed: int = 0
    seconds: float = 0.0


class CountingRun:
    """Runs Slurm's commands like `run_command`, and counts them by name."""

    def __init__(self, clock: Clock, run: CommandRunner = run_command) -> None:
        self._clock, self._run = clock, run
        self.by_command: dict[str, CallStatistics] = {}

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        """Run a command and count it, also where it fails; what asks no daemon is not counted."""
        if argv[1:] in _ASK_NO_DAEMON:
            return self._run(argv, environ, timeout_s)
        calls = self.by_command.setdefault(argv[0], CallStatistics())
        calls.n += 1
        calls.failed += 1
        began = self._clock.monotonic()
        try:
            text = self._run(argv, environ, timeout_s)
        finally:
            calls.seconds += self._clock.monotonic() - began
        calls.failed -= 1
        return text

    def __str__(self) -> str:
        """Such as "squeue 3600 (12 ms each), scontrol 61 (9 ms each, 1 failed)"."""
        words = []
        for name, calls in sorted(self.by_command.items()):
            failed = f", {calls.failed} failed" if calls.failed else ""
            words.append(f"{name} {calls.n} ({calls.seconds / calls.n * 1000:.0f} ms each{failed})")
        return ", ".join(words) or "nothing"
