"""Store the current state, and wake requests that wait for the next one."""

from __future__ import annotations

import asyncio

from slurm_gpu.errors import OutsideError
from slurm_gpu.monitor.cluster.state import PageState


class Board:
    """The state that the poller sets and requests read; `show` may be called from any thread."""

    def __init__(self) -> None:
        self.state: PageState | None = None
        self.stopping = False
        self.is_viewed = False
        """Whether a page has requested data since the poller last cleared this flag."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None

    def current(self) -> PageState:
        """Return the state; raise OutsideError if slurm-gpudbd has not answered yet."""
        if self.state is None:
            raise OutsideError(
                "the cluster state is unknown: slurm-gpudbd has not answered since slurm-gpuweb started"
            )
        return self.state

    def show(self, state: PageState) -> None:
        """Answer all later requests with this state."""
        self.state = state
        self._wake_all()

    def stop(self) -> None:
        """Wake all waiting requests, because the server is stopping."""
        self.stopping = True
        self._wake_all()

    def _wake_all(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Wake the requests that are waiting now. Later requests wait on a new event object."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self, version: int | None, within_s: float) -> bool:
        """Wait until `version` is outdated or the server stops; return False if `within_s` passes first."""
        self._loop = asyncio.get_running_loop()
        self.is_viewed = True
        if self.stopping or (self.state is not None and self.state.version != version):
            return True
        if self._changed is None:
            self._changed = asyncio.Event()
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True
