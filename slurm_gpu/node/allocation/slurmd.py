"""`slurmd -G`, which tells the order of a node's GPUs: run to its end, or asked while all else goes on.

It may take long, or for ever, as where Slurm lies on a file system that hangs: a process that the kernel
holds on to cannot even be killed. The wheel of slurm-gpud never waits for it.
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
from slurm_gpu.node.worker_thread import WorkThread

log = logging.getLogger(__name__)

RunSlurmd = Callable[[Sequence[str]], str]

CONF = Path("/etc/slurm/slurm.conf")
CACHED_CONF = Path("/run/slurm/conf/slurm.conf")
"""Where a slurmd keeps what slurmctld sent it, on nodes without a slurm.conf of their own (configless)."""

# How long it may take; who asks is told of its silence before.
DEADLINE_S = 20.0
SILENT_S = 2.0
# Between two questions of which the first was of no use: doubled each time.
RETRY_S, RETRY_MAX_S = 1.0, 60.0
_ENDS_WITHIN_S = 1.0
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # not on the PATH of everybody
# vfork() holds the whole of Python until the new program is loaded, and Slurm's may lie on a file system that
# hangs: so this one is loaded first, and loads slurmd.
_ENV = "/usr/bin/env"


def run_slurmd(command: Sequence[str], ends_within_s: float | None = _ENDS_WITHIN_S) -> str:
    """Standard output and error together (-G prints on the latter); raises SlurmError when it fails.

    One that is killed for its silence is waited for so long; None: until it is really gone.
    """
    told = " ".join(command)
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
        raise SlurmError(f"{told}: {error.strerror}") from error
    try:
        said, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        _end(process, ends_within_s)
        raise SlurmError(f"{told}: no answer within {DEADLINE_S:g} s") from None
    text = said.decode("utf-8", "replace")
    if process.returncode != 0:
        reason = text.strip()[-300:] or (
            "it printed nothing; is this the node's name in slurm.conf (--node)? Where it is a dynamic node, "
            "does its slurmd run?"
        )
        raise SlurmError(f"{told}: exit status {process.returncode}: {reason}")
    return text


def _end(process: subprocess.Popen[bytes], within_s: float | None) -> None:
    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        log.debug("process %d was killed, and the kernel holds on to it", process.pid)


def _conf_variable(environ: Mapping[str, str]) -> Mapping[str, str]:
    """What to add to the environment, so that `slurmd -G` reads what the slurmd of this node has read."""
    conf = conf_of_slurmd(environ)
    return {} if conf is None else {"SLURM_CONF": str(conf)}


def conf_of_slurmd(
    environ: Mapping[str, str], conf: Path = CONF, cached: Path = CACHED_CONF, proc: Path = Path("/proc")
) -> Path | None:
    """The slurm.conf to name to `slurmd -G`; None where it finds that of the running slurmd by itself.

    Without a slurm.conf it would ask slurmctld for one, as if it were to run, or fail. With `--conf-server`
    the running one heeds no file. The variable is used, not -f: gres.conf is looked for beside it.
    """
    if environ.get("SLURM_CONF") or not os.access(cached, os.R_OK):
        return None
    return cached if not os.access(conf, os.F_OK) or _has_conf_server(proc) else None


def _has_conf_server(proc: Path) -> bool:
    return any(word.startswith("--conf-server") for _, words in running_slurmds(proc) for word in words)


class SlurmdQuestion:
    """Asks `command` in a thread of its own, once at a time, and not again at once where that was of no use.

    `wake` is called from that thread when an answer has come.
    """

    def __init__(
        self,
        command: Sequence[str],
        clock: Clock,
        run: RunSlurmd,
        worker: WorkThread | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._command, self._clock, self._wake = command, clock, wake
        self._run = run
        self._worker = WorkThread("slurmd -G") if worker is None else worker
        self._came = threading.Event()
        self._said: str | SlurmError | None = None
        self._since_s: float | None = None
        self._pause_s, self._due_s = 0.0, 0.0
        self._failed = False

    @property
    def is_open(self) -> bool:
        """Has it been asked, and is there no answer yet?"""
        return self._since_s is not None

    @property
    def is_silent(self) -> bool:
        """Did it fail, or does it take too long?"""
        return self._failed or self.silent_s > SILENT_S

    @property
    def silent_s(self) -> float:
        """For how long an answer has been waited for."""
        return 0.0 if self._since_s is None else self._clock.monotonic() - self._since_s

    def ask(self) -> bool:
        """Ask, unless there is a question already or the pause is not over; True if it is asked now."""
        now_s = self._clock.monotonic()
        if self._since_s is not None or now_s < self._due_s:
            return False
        self._since_s = now_s
        self._came.clear()
        try:
            self._worker.start(self._hear)
        except RuntimeError as error:
            self._answered(SlurmError(f"{' '.join(self._command)}: {error}"))
        return True

    def wait(self, seconds: float) -> None:
        """Until there is an answer to what was asked, so long at most."""
        if self._since_s is not None:
            self._came.wait(seconds)

    def answer(self) -> str | None:
        """What it has answered since the last call, if anything; raises SlurmError where it failed."""
        said, self._said = self._said, None
        if said is None:
            return None
        self._since_s = None
        self._failed = isinstance(said, SlurmError)
        if isinstance(said, SlurmError):
            raise said
        return said

    def no_use(self) -> None:
        """What was answered does not help: let the next question wait."""
        self._pause_s = min(RETRY_MAX_S, max(RETRY_S, 2 * self._pause_s))
        self._due_s = self._clock.monotonic() + self._pause_s

    def at_once(self) -> None:
        """There is no reason to let the next question wait."""
        self._pause_s = self._due_s = 0.0

    def _hear(self) -> None:
        """In a thread of its own."""
        said: str | SlurmError = SlurmError(f"{' '.join(self._command)}: failed for a reason of our own")
        try:
            said = self._run(self._command)
        except SlurmError as error:
            said = error
        finally:
            self._answered(said)

    def _answered(self, said: str | SlurmError) -> None:
        self._said = said
        self._came.set()
        self._wake()
