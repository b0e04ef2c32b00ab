import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slurm_gpu.monitor.page.files import page_files
from tests import browsing
from tests.monitor.page.contract_server import Pretended, pretended
from tests.monitor.page.example_clusters import World


class Tab(browsing.Tab):
    """The page in a browser, with its console messages."""

    def __init__(self, browser: Any, served: Pretended, path: str = "", **options: Any) -> None:
        self.served = served
        super().__init__(browser, served.url + path, **options)

    def ready(self) -> "Tab":
        """Wait until squares and panels are drawn, and the page listens for events."""
        self.page.locator("#frame[data-drawn]").wait_for()
        self.page.locator("#free li, #free .none").first.wait_for()
        self.served.wait_for_listener()
        return self

    def drawn_after(self, act: Callable[[], Any]) -> None:
        """Wait until the squares have been drawn again."""
        # wait_for_function evaluates text, which the page's security policy forbids.
        before = self.page.evaluate("document.getElementById('frame').dataset.drawn")
        act()
        self.page.locator(f'#frame[data-drawn]:not([data-drawn="{before}"])').wait_for()

    def ask(self, expression: str) -> Any:
        """Evaluate a script that finds the page's modules in `start`."""
        start = next(path for path in page_files() if path.endswith("/start.js"))
        return self.page.evaluate(f"async () => {{ const start = await import('{start}'); {expression} }}")

    def corner(self, square: int) -> tuple[float, float, float]:
        """(x, y, side) of a square within the canvas, in pixels of the page."""
        return tuple(
            self.ask(
                f"const s = start.squares, [x, y] = s.corner({square});"
                "return [x / s.unit, y / s.unit, (s.zoom.pitch - s.places.line) / s.unit];"
            )
        )

    def unmark(self) -> "Tab":
        """Reset the filters and the selection of the page; return the tab."""
        self.page.select_option("#side", "under")
        self.page.fill("#limit", "10")
        self.page.fill("#find", "")
        self.ask("start.squares.whole(); start.squares.setFocus(-1); start.squares.draw();")
        return self

    def pixels(self, square: int) -> list[list[int]]:
        """Return the colours of a square, row by row from its upper left corner."""
        return list(
            self.ask(
                f"const s = start.squares, [x, y] = s.corner({square}), n = s.zoom.pitch - s.places.line;"
                "const { data } = s.base.getContext('2d').getImageData(x, y, n, n);"
                "return Array.from({ length: n * n }, (_, k) => [...data.slice(4 * k, 4 * k + 3)]);"
            )
        )

    def middle(self, square: int) -> list[int]:
        """Return the fill colour of a square."""
        some = self.pixels(square)
        side = round(len(some) ** 0.5)
        # Large squares contain numbers, but not at a quarter of the side from the corner.
        return some[(side // 4) * side + side // 4]

    def focus(self, square: int) -> str:
        """Focus a square and return its description."""
        self.ask(f"start.squares.setFocus({square});")
        return str(self.page.inner_text("#focused"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing.chromium() as browser:
        yield browser


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Serve a world and open its page; close both after the test."""
    with contextlib.ExitStack() as stack:

        def open_tab(world: World, path: str = "", status: int | None = None, **options: Any) -> Tab:
            served = stack.enter_context(pretended(world))
            served.status = status
            tab = Tab(browser, served, path, **options)
            stack.callback(tab.context.close)
            return tab

        yield open_tab


@pytest.fixture
def job_tab(opened: Callable[..., Tab]) -> Callable[[World], Tab]:
    """Return a function that opens the page of job 200, and waits until it is drawn."""

    def open_job(world: World) -> Tab:
        tab = opened(world, "job?id=200")
        tab.page.locator("#sheets:not([hidden]), #error:not([hidden])").first.wait_for()
        return tab

    return open_job
