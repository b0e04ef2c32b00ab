"""The pages work in Firefox as in Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.polling import wait_for
from tests.monitor.page.contract_server import Pretended, pretended
from tests.monitor.page.test_accessibility import world

_FIREFOX = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
_WITHIN_S = 30.0
# marionette-driver does not close the sockets with which it waits for Firefox.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a headless Firefox; skip the tests if Firefox is not installed."""
    marionette = pytest.importorskip(
        "marionette_driver.marionette", reason="needs marionette-driver (extra dev)"
    )
    if _FIREFOX is None:
        pytest.skip("needs Firefox, which packaging/install-packages installs if it is available")
    log = tmp_path_factory.mktemp("firefox") / "log"
    browser = marionette.Marionette(bin=_FIREFOX, headless=True, gecko_log=str(log))
    browser.start_session()
    yield browser
    browser.quit()
    browser.cleanup()


@pytest.fixture(scope="module")
def served() -> Iterator[Pretended]:
    with pretended(world()) as state:
        yield state


class FirefoxTab:
    """A page in Firefox."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser = browser
        browser.navigate(url)

    def ask(self, expression: str) -> Any:
        return self.browser.execute_script(f"return {expression};")

    def text(self, selector: str) -> str:
        return str(self.ask(f"document.querySelector('{selector}')?.innerText ?? ''")).replace("\u00a0", " ")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; otherwise the error contains the text of the page."""
        wait_for(condition, _WITHIN_S, "the page shows this", lambda: self.text("body"), interval_s=0.1)

    def click(self, selector: str) -> None:
        """Click an element, which an update may replace at any time."""
        self.browser.execute_script(f"document.querySelector('{selector}').click();")


@pytest.fixture
def opened(firefox: Any, served: Pretended) -> Callable[[str], FirefoxTab]:
    return lambda path: FirefoxTab(firefox, served.url + path)


def test_squares_usage_and_alerts_are_drawn(opened: Callable[[str], FirefoxTab]) -> None:
    tab = opened("?view=all")
    tab.wait_for(lambda: "allocated" in tab.text("#usage .reading"))
    assert tab.text("#status").startswith("2 jobs have 3 idle GPUs, 3 GPU-hours so far")
    pixels = "document.getElementById('base').getContext('2d').getImageData(0, 0, 300, 100).data"
    assert tab.ask(f"new Set({pixels}).size") > 10
    assert tab.ask("document.querySelectorAll('#usage path.busy[d^=M]').length") == 1
    tab.click("#attention .lights")
    tab.wait_for(lambda: tab.text("#found") == "2 GPUs of job 200: allocated, never used")


def test_the_keyboard_selects_squares(opened: Callable[[str], FirefoxTab]) -> None:
    tab = opened("?view=all")
    tab.wait_for(lambda: tab.ask("document.getElementById('frame').dataset.drawn") is not None)
    frame = tab.browser.find_element("css selector", "#frame")
    for key in ("\ue011", "\ue015", " "):  # Home, arrow down, space
        frame.send_keys(key)
    tab.wait_for(lambda: tab.text("#jobs h2") == "Jobs on the 1 selected GPU")
    assert "201" in tab.text("#jobs tbody")


def test_the_theme_is_kept(opened: Callable[[str], FirefoxTab]) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    tab = opened("?view=all")
    light = tab.ask(colour)
    for _ in ("light", "dark"):
        tab.click("#theme")
    assert tab.ask(colour) != light
    tab = opened("jobs?view=all")
    assert tab.ask(colour) != light
    tab.click("#theme")
    assert tab.text("#theme") == "Theme: system"


@pytest.mark.parametrize(("state", "job"), [("running", "200"), ("pending", "300"), ("ended", "9")])
def test_jobs_are_listed_and_lead_to_their_pages(
    opened: Callable[[str], FirefoxTab], state: str, job: str
) -> None:
    tab = opened(f"jobs?view=all&state={state}")
    tab.wait_for(lambda: job in tab.text("#table tbody"))
    tab.click("#table tbody a")
    # While the page is replaced, scripts return nothing.
    tab.wait_for(lambda: "job?id=" in str(tab.ask("location.href")))


def test_the_timeline_of_a_job_is_drawn(opened: Callable[[str], FirefoxTab]) -> None:
    tab = opened("job?id=200")
    tab.wait_for(lambda: tab.ask("document.querySelectorAll('#charts canvas').length") > 0)
    pixels = (
        "(canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data)"
        "(document.querySelector('#charts canvas'))"
    )
    tab.wait_for(lambda: tab.ask(f"new Set({pixels}).size") > 5)
