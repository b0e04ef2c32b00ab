"""Start, stop and kill a daemon of the lab, and check whether it is ready."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.errors import LabError
from lab.polling import wait_for
from lab.processes import reap, start_ticks, started_here

_TAIL_LINES = 20


@dataclass(frozen=True)
class Daemon:
    """A foreground process, detached from the process that started it.

    ``pid_file`` contains the process ID and start time, by which later commands identify the process.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    pid_file: Path
    is_ready: Callable[[], bool]
    user: str | None = None
    other_logs: Sequence[Path] = field(default=())
    deadline_s: float = 60.0

    @property
    def pid(self) -> int | None:
        """The process ID; None while the daemon is not running."""
        try:
            pid, started = map(int, self.pid_file.read_text().split())
        except (OSError, ValueError):
            return None
        return pid if start_ticks(pid) == started else None

    @property
    def running(self) -> bool:
        """Return whether the process is running."""
        return self.pid is not None

    def start(self, *, wait: bool = True) -> None:
        """Start the daemon if it is not running; with ``wait``, wait until it answers."""
        if not self.running:
            self._spawn()
        if wait:
            self.wait_ready()

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=dict(self.environment),
                start_new_session=True,
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
            )
        self.pid_file.write_text(f"{process.pid} {start_ticks(process.pid) or 0}\n")
        process.returncode = 0  # the process outlives this object; /proc shows whether it still runs
        started_here.add(process.pid)

    def wait_ready(self) -> None:
        """Wait until the daemon answers; raise LabError with the end of its log if it ends or times out."""

        def answers() -> bool:
            reap()
            if not self.running:
                raise LabError(f"{self.name} ended while starting\n{self.log_tail()}")
            return self.is_ready()

        wait_for(answers, self.deadline_s, f"{self.name} answers", self.log_tail)

    def log_tail(self) -> str:
        """Return the last lines of the daemon's logs, with their paths."""
        parts = []
        for path in (self.log, *self.other_logs):
            if path.exists() and (text := path.read_text(errors="replace").strip()):
                parts.append(f"{path}:\n  " + "\n  ".join(text.splitlines()[-_TAIL_LINES:]))
        return "\n".join(parts) or f"{self.log} is empty"

    def stop(self, grace_s: float = 30.0) -> None:
        """End the daemon with SIGTERM or, after ``grace_s``, with SIGKILL."""
        if (pid := self.pid) is None:
            return
        os.kill(pid, signal.SIGTERM)
        try:
            wait_for(self._gone, grace_s, f"{self.name} ends")
        except LabError:
            self.kill9()

    def kill9(self) -> None:
        """Kill the daemon at once, as in a crash, but not its children."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGKILL)
            wait_for(self._gone, 30.0, f"{self.name} dies of SIGKILL", interval_s=0.01)

    def restart(self) -> None:
        """Stop the daemon and start it again."""
        self.stop()
        self.start()

    def _gone(self) -> bool:
        reap()
        return not self.running
