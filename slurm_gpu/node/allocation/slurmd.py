"""Run `slurmd -G`, in the foreground or the background, to obtain the order of a node's GPUs.

The command can take a long time, or never end. For example, if Slurm is on a file system that hangs, the
process cannot even be killed. The main loop of slurm-gpud never waits for the command.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurm_gpu.clock import Clock
from slurm_gpu.errors import SlurmError
from slurm_gpu.node.allocation.dynamic_node import running_slurmds
from slurm_gpu.node.worker_thread import WorkerThread

log = logging.getLogger(__name__)

RunSlurmd = Callable[[Sequence[str]], str]

CONF = Path("/etc/slurm/slurm.conf")
# slurmd stores slurmctld's configuration here on nodes without their own slurm.conf (configless).
CACHED_CONF = Path("/run/slurm/conf/slurm.conf")

# Maximum duration of a query; `is_silent` reports a slow query earlier.
DEADLINE_S = 20.0
SILENT_S = 2.0
# The pause after a failed query or an unhelpful answer; it doubles each time.
RETRY_S, RETRY_MAX_S = 1.0, 60.0
_ENDS_WITHIN_S = 1.0
# These directories are not on every user's PATH.
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
# vfork() blocks Python until the new program is loaded. Slurm may be on a file system that hangs, so load
# this local program, which then loads slurmd.
_ENV = "/usr/bin/env"


def run_slurmd(command: Sequence[str], ends_within_s: float | None = _ENDS_WITHIN_S) -> str:
    """Run slurmd and return its output, including stderr, to which -G prints; raise SlurmError on failure.

    `ends_within_s` limits the wait (in seconds) for a killed process to end; None means no limit.
    """
    command_line = " ".join(command)
    path = f"{os.environ.get('PATH', os.defpath)}:{SBIN}"
    if shutil.which(command[0], path=path) is None:
        raise SlurmError(f"{command[0]} is not on the PATH ({path})")
    environ = {**os.environ, **_conf_variable(os.environ), "PATH": path}
    try:
        process = subprocess.Popen(
            [_ENV, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
        )
    except OSError as error:
        raise SlurmError(f"{command_line}: {error.strerror}") from error
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        _end(process, ends_within_s)
        raise SlurmError(f"{command_line}: no answer within {DEADLINE_S:g} s") from None
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        reason = text.strip()[-300:] or (
            "no output; check that --node is the name in slurm.conf, "
            "or, on a dynamic node, that slurmd is running"
        )
        raise SlurmError(f"{command_line}: exit status {process.returncode}: {reason}")
    return text


def _end(process: subprocess.Popen[bytes], within_s: float | None) -> None:
    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        log.debug("process %d was killed but has not ended", process.pid)


def _conf_variable(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variable that makes `slurmd -G` read the configuration of this node's slurmd, if needed."""
    conf = conf_of_slurmd(environ)
    return {} if conf is None else {"SLURM_CONF": str(conf)}


def conf_of_slurmd(
    environ: Mapping[str, str], conf: Path = CONF, cached: Path = CACHED_CONF, proc: Path = Path("/proc")
) -> Path | None:
    """Return the slurm.conf for `slurmd -G`, or None if it finds the running slurmd's file by itself.

    Without a slurm.conf, `slurmd -G` would request one from slurmctld or fail. With `--conf-server`, the
    running slurmd ignores local files. The path is passed in SLURM_CONF instead of with -f, because slurmd
    searches for gres.conf next to the file that SLURM_CONF names.
    """
    if environ.get("SLURM_CONF") or not os.access(cached, os.R_OK):
        return None
    return cached if not os.access(conf, os.F_OK) or _has_conf_server(proc) else None


def _has_conf_server(proc: Path) -> bool:
    return any(word.startswith("--conf-server") for _, words in running_slurmds(proc) for word in words)


class SlurmdQuery:
    """Runs `command` in a separate thread, one query at a time.

    The pause before the next query grows with each failed query or unhelpful answer. The thread calls `wake`
    when an answer is available.
    """

    def __init__(
        self,
        command: Sequence[str],
        clock: Clock,
        run: RunSlurmd,
        worker: WorkerThread | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._command, self._clock, self._wake = command, clock, wake
        self._run = run
        self._worker = WorkerThread("slurmd -G") if worker is None else worker
        self._came = threading.Event()
        self._result: str | SlurmError | None = None
        self._since_s: float | None = None
        self._pause_s, self._due_s = 0.0, 0.0
        self._failed = False

    @property
    def is_open(self) -> bool:
        """Return whether a query is running."""
        return self._since_s is not None

    @property
    def is_silent(self) -> bool:
        """Return whether the last query failed or the current one is taking too long."""
        return self._failed or self.silent_s > SILENT_S

    @property
    def silent_s(self) -> float:
        """Return for how many seconds the current query has been running."""
        return 0.0 if self._since_s is None else self._clock.monotonic() - self._since_s

    def ask(self) -> bool:
        """Start a query unless one is running or the pause has not ended; return whether it was started."""
        now_s = self._clock.monotonic()
        if self._since_s is not None or now_s < self._due_s:
            return False
        self._since_s = now_s
        self._came.clear()
        try:
            self._worker.start(self._run_query)
        except RuntimeError as error:
            self._answered(SlurmError(f"{' '.join(self._command)}: {error}"))
        return True

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the answer."""
        if self._since_s is not None:
            self._came.wait(seconds)

    def answer(self) -> str | None:
        """Return a new answer, or None if there is none; raise SlurmError if the query failed."""
        result, self._result = self._result, None
        if result is None:
            return None
        self._since_s = None
        self._failed = isinstance(result, SlurmError)
        if isinstance(result, SlurmError):
            raise result
        return result

    def back_off(self) -> None:
        """Delay the next query, because the answer did not help."""
        self._pause_s = min(RETRY_MAX_S, max(RETRY_S, 2 * self._pause_s))
        self._due_s = self._clock.monotonic() + self._pause_s

    def reset_backoff(self) -> None:
        """End the pause, so that the next query can start immediately."""
        self._pause_s = self._due_s = 0.0

    def _run_query(self) -> None:
        """Run the command in the worker thread."""
        result: str | SlurmError = SlurmError(f"{' '.join(self._command)}: failed with an internal error")
        try:
            result = self._run(self._command)
        except SlurmError as error:
            result = error
        finally:
            self._answered(result)

    def _answered(self, result: str | SlurmError) -> None:
        self._result = result
        self._came.set()
        self._wake()
