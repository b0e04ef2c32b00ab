"""The state that is shown now, and who waits for the next one."""

from __future__ import annotations

import asyncio

from slurm_gpu.monitor.cluster.state import PageState


class Board:
    """Where the poller puts each state, and requests find it; `show` may be called from any thread."""

    def __init__(self) -> None:
        self.state: PageState | None = None
        self.stopping = False
        self.is_viewed = False
        """Whether a page was requested since the poller cleared this."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None

    def show(self, state: PageState) -> None:
        """Every request that begins from now on is answered with this state."""
        self.state = state
        self._wake_all()

    def stop(self) -> None:
        """Those who wait are told to leave."""
        self.stopping = True
        self._wake_all()

    def _wake_all(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Those who wait have this event; who comes later waits for another."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self, version: int | None, within_s: float) -> bool:
        """Wait until the state is another than `version`, or everything ends; False where time is up."""
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
