"""Start a browser for benchmarks of pages, and measure its processor time."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Yield a headless browser, or None if Chromium or playwright is not installed."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class MainThreadTime:
    """The processor time of a tab's main thread, in ms."""

    def __init__(self, tab: Any) -> None:
        self._session = tab.context.new_cdp_session(tab)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._last = self._now()

    def since(self) -> float:
        """Return the time since the last call."""
        before, self._last = self._last, self._now()
        return self._last - before

    def _now(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")
