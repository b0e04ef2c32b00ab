"""Draw pages that require numpy and several seconds of CPU time, each page in its own process.

At most two processes run at once, and only a few requests may wait. Therefore, even many pages delay neither
answers to other users nor the heartbeat of slurm-gpuweb.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence

from starlette.exceptions import HTTPException

from slurm_gpu.files.source_root import SOURCE_ROOT

log = logging.getLogger("slurm-gpuweb")

AT_ONCE = 2
MOST_WAITING = 8
OF_A_USER = 2
# The time limit for one drawing. Drawing a job of 128 GPUs and 24 hours takes two seconds.
WITHIN_S = 60.0
_RETRY = {"Retry-After": "5"}
# The page is drawn by a command rather than an imported module, so that only the new process loads numpy.
DIAGNOSIS = (sys.executable, "-S", "-P", "-m", "slurm_gpu.reports.diagnosed.process")


class DrawingProcess:
    """Runs `command`, which reads a request from standard input and writes the page to standard output."""

    def __init__(self, command: Sequence[str] = DIAGNOSIS, within_s: float = WITHIN_S) -> None:
        self._command, self._within_s = command, within_s
        self._running: asyncio.Semaphore | None = None
        self._of: Counter[str] = Counter()

    async def draw(self, user: str, page_input: bytes) -> bytes:
        """Return the page; raise HTTPException 503 if too many are requested, 500 if drawing failed."""
        if self._of.total() >= AT_ONCE + MOST_WAITING:
            raise HTTPException(503, "too many diagnoses are being drawn; retry in a few seconds", _RETRY)
        if self._of[user] >= OF_A_USER:
            raise HTTPException(
                503, f"{user} already has {OF_A_USER} diagnoses in progress; retry in a few seconds", _RETRY
            )
        # The semaphore is created on first use, because it requires a running event loop.
        if self._running is None:
            self._running = asyncio.Semaphore(AT_ONCE)
        self._of[user] += 1
        try:
            async with self._running:
                return await self._run(page_input)
        finally:
            self._of[user] -= 1
            if not self._of[user]:
                del self._of[user]

    async def _run(self, page_input: bytes) -> bytes:
        pipe = asyncio.subprocess.PIPE
        # By default, numerical libraries use a thread per processor, which would slow down the web server.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        environ = {**os.environ, **threads, "PYTHONPATH": _path()}
        environ.pop("NOTIFY_SOCKET", None)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ
            )
        # The service has reached its maximum number of processes, or memory is exhausted.
        except OSError as error:
            why = f"no process could be started to draw the diagnosis: {error.strerror}"
            log.warning("%s", why)
            raise HTTPException(503, why, _RETRY) from error
        try:
            page, stderr = await asyncio.wait_for(process.communicate(page_input), self._within_s)
        except TimeoutError:
            raise HTTPException(503, f"the diagnosis took longer than {self._within_s:g} s", _RETRY) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            why = (stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
            log.error("a diagnosis could not be drawn (exit code %s): %s", process.returncode, why)
            more = (
                "numpy is not installed for slurm-gpuweb"
                if "'numpy'" in why
                else "see the log of slurm-gpuweb"
            )
            raise HTTPException(500, f"the diagnosis could not be drawn: {more}")
        return page


def _path() -> str:
    """Return the import path of this process, for use in the new process.

    Some packages install libraries in directories of their own.
    """
    return os.pathsep.join([str(SOURCE_ROOT), *filter(None, sys.path)])
