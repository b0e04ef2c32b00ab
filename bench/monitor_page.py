"""Measure the page of slurm-gpuweb in headless Chromium without graphics hardware.

- redraw: from a new frame's values until squares, rings, counts and legend are submitted for display, at
  least until the browser's next frame (every 16.7 ms); the median of 41. The processor time of the page's
  main thread is also measured.
- load: from requesting the page until its squares are drawn, with an empty cache; the median of nine.
- refresh: the bytes of one new state of the whole page, including headers; the mean of a few.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from bench.browser import MainThreadTime, chromium

_WIDTH, _HEIGHT = 1280, 900
_LOADS, _REDRAWS = 9, 41
_DRAWN = "#frame[data-drawn]"
# All values differ each time, so that nothing is drawn from a cache.
_REDRAW = """async () => {
  const module = document.querySelector('script[type=module]').src;
  const { cluster, squares, take } = await import(module);
  const next = cluster.octets.map((octet) => (octet === 255 ? 255 : Math.floor(101 * Math.random())));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const start = performance.now(), before = squares.drawn;
  cluster.octets = next;
  take(['frame']);
  if (squares.drawn === before) throw new Error('no square was drawn');
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""


Tab = Callable[[], Any]
"""Opens a new, unused tab."""


def page_figures(port: int, cookie: str, gpus: int, every_s: float) -> dict[str, float]:
    """Return all values of a page with this session's cookie; empty without a browser."""
    url = f"http://127.0.0.1:{port}/"
    with chromium() as browser:
        if browser is None:
            print("no Chromium, or no playwright: the page was not measured")
            return {}

        def tab() -> Any:
            context = browser.new_context(viewport={"width": _WIDTH, "height": _HEIGHT})
            name, _, value = cookie.partition("=")
            context.add_cookies([{"name": name, "value": value, "url": url}])
            return context.new_page()

        shown_ms, drawn_cpu_ms = redraws(tab, url)
        load_ms, load_cpu_ms = loads(tab, url)
        received = refreshes(tab, url, every_s)
    print(
        f"{gpus:,} squares: redrawn in {shown_ms:.1f} ms ({drawn_cpu_ms:.1f} ms of processor time), ready in "
        f"{load_ms:.0f} ms ({load_cpu_ms:.0f} ms); a state costs the page {received:,.0f} bytes",
        flush=True,
    )
    return {
        f"redraw_ms_{gpus}": round(shown_ms, 1),
        f"redraw_cpu_ms_{gpus}": round(drawn_cpu_ms, 1),
        f"load_ms_{gpus}": round(load_ms),
        f"load_cpu_ms_{gpus}": round(load_cpu_ms),
        f"page_refresh_bytes_{gpus}": round(received),
    }


def redraws(open_tab: Tab, url: str) -> tuple[float, float]:
    """Return the medians of ms until shown, and of the main thread's processor time."""
    tab = open_tab()
    tab.goto(url)
    tab.locator(_DRAWN).wait_for()
    tab.wait_for_timeout(1000)
    tab.evaluate(_REDRAW)
    worked, found = MainThreadTime(tab), []
    for _ in range(_REDRAWS):
        shown_ms = tab.evaluate(_REDRAW)
        found.append((shown_ms, worked.since()))
    tab.context.close()
    return _medians(found)


def loads(open_tab: Tab, url: str) -> tuple[float, float]:
    """Return the medians of ms until the squares are drawn, and of the main thread's processor time."""
    found = []
    for _ in range(_LOADS):
        tab = open_tab()
        tab.goto("about:blank")
        worked = MainThreadTime(tab)
        started = time.perf_counter()
        tab.goto(url, wait_until="commit")
        tab.locator(_DRAWN).wait_for()
        found.append((1000 * (time.perf_counter() - started), worked.since()))
        tab.context.close()
    return _medians(found)


def _medians(found: list[tuple[float, float]]) -> tuple[float, float]:
    first, second = zip(*found, strict=True)
    return statistics.median(first), statistics.median(second)


def refreshes(open_tab: Tab, url: str, every_s: float, states: int = 6) -> float:
    """Return the mean bytes on the wire for one state."""
    tab = open_tab()
    session = tab.context.new_cdp_session(tab)
    session.send("Network.enable")
    tab.goto(url)
    tab.locator(_DRAWN).wait_for()
    tab.wait_for_timeout(1000 * every_s)
    received = 0.0

    def count(event: Any) -> None:
        nonlocal received
        received += event.get("encodedDataLength", 0)

    session.on("Network.loadingFinished", count)
    session.on("Network.dataReceived", lambda event: None)
    tab.wait_for_timeout(1000 * every_s * states)
    tab.context.close()
    return received / states
