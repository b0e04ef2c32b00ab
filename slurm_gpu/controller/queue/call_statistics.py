"""Count and time the calls to Slurm's commands, to report the load on slurmctld."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.clock import Clock
from slurm_gpu.slurm.runner import CommandRunner, run_command

_ASK_NO_DAEMON = (["--version"], ["--helpFormat"])


@dataclass(slots=True)
class CallStatistics:
    """Statistics of one of Slurm's commands; each call queries a daemon once."""

    n: int = 0
    failed: int = 0
    seconds: float = 0.0


class CountingRun:
    """Runs Slurm's commands like `run_command` and counts them by name."""

    def __init__(self, clock: Clock, run: CommandRunner = run_command) -> None:
        self._clock, self._run = clock, run
        self.by_command: dict[str, CallStatistics] = {}

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        """Run a command, and count it if it queries a daemon, even if it fails."""
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
        """Return a text such as "squeue 3600 (12 ms each), scontrol 61 (9 ms each, 1 failed)"."""
        words = []
        for name, calls in sorted(self.by_command.items()):
            failed = f", {calls.failed} failed" if calls.failed else ""
            words.append(f"{name} {calls.n} ({calls.seconds / calls.n * 1000:.0f} ms each{failed})")
        return ", ".join(words) or "nothing"
