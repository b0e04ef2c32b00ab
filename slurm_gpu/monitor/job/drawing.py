"""Pages that take seconds of processor and numpy to make, each drawn by a process of its own.

Two at once, and a short line behind them: whoever opens many pages slows down neither the answers to
others nor what slurm-gpuweb needs to stay alive.
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
WITHIN_S = 60.0
"""A job of 128 GPUs and 24 hours takes two."""
_RETRY = {"Retry-After": "5"}
DIAGNOSIS = (sys.executable, "-S", "-P", "-m", "slurm_gpu.reports.diagnosed.process")
"""Not imported: numpy is in that process alone."""


class DrawingProcess:
    """`command` reads what is asked from its standard input, and writes the page."""

    def __init__(self, command: Sequence[str] = DIAGNOSIS, within_s: float = WITHIN_S) -> None:
        self._command, self._within_s = command, within_s
        self._turn: asyncio.Semaphore | None = None
        self._of: Counter[str] = Counter()

    async def draw(self, user: str, asked: bytes) -> bytes:
        """The page; HTTPException 503 where too many are asked for, 500 where it cannot be drawn."""
        if self._of.total() >= AT_ONCE + MOST_WAITING:
            raise HTTPException(503, "many look at diagnoses just now", _RETRY)
        if self._of[user] >= OF_A_USER:
            raise HTTPException(503, f"{OF_A_USER} diagnoses for {user} are being drawn already", _RETRY)
        if self._turn is None:  # only where there is a loop
            self._turn = asyncio.Semaphore(AT_ONCE)
        self._of[user] += 1
        try:
            async with self._turn:
                return await self._run(asked)
        finally:
            self._of[user] -= 1
            if not self._of[user]:
                del self._of[user]

    async def _run(self, asked: bytes) -> bytes:
        pipe = asyncio.subprocess.PIPE
        # As many threads as processors would fight over them with whoever serves pages.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        environ = {**os.environ, **threads, "PYTHONPATH": _path()}
        environ.pop("NOTIFY_SOCKET", None)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ
            )
        except OSError as error:  # as many processes as the service may have, or no memory for one more
            why = f"no process could be started to draw the diagnosis: {error.strerror}"
            log.warning("%s", why)
            raise HTTPException(503, why, _RETRY) from error
        try:
            page, told = await asyncio.wait_for(process.communicate(asked), self._within_s)
        except TimeoutError:
            raise HTTPException(503, f"the diagnosis took longer than {self._within_s:g} s", _RETRY) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            why = (told.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            log.error("a diagnosis could not be drawn (exit code %s): %s", process.returncode, why)
            more = "numpy is not installed beside slurm-gpuweb" if "'numpy'" in why else "its log says why"
            raise HTTPException(500, f"the diagnosis could not be drawn: {more}")
        return page


def _path() -> str:
    """Where this process finds what it imports: packages have libraries at places of their own."""
    return os.pathsep.join([str(SOURCE_ROOT), *filter(None, sys.path)])
