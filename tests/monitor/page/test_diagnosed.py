"""Test slurm-gpuweb's page of a diagnosis in a real browser: its security policy and its drawing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_gpu.config.value_types import Address
from slurm_gpu.http.sockets import listen_tcp
from slurm_gpu.monitor.http.server import make_server
from tests import browsing
from tests.monitor.page.example_clusters import HOSTILE
from tests.monitor.slow_training import Drawn


@contextlib.contextmanager
def served(drawn: Drawn) -> Iterator[str]:
    """Return the address of the page on the real server."""
    server = make_server(drawn.app)
    listener = listen_tcp(Address("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[browsing.Tab]:
    drawn = Drawn(name="".join(HOSTILE))
    with served(drawn) as url:
        tab = browsing.Tab(browser, f"{url}diagnosis?id={drawn.job}")
        yield tab
        tab.context.close()


def test_the_page_is_drawn_without_violations_of_its_policy(tab: browsing.Tab):
    assert tab.said == []
    assert tab.page.locator("h2", has_text="slow or failing").is_visible()
    shown = tab.page.locator(".plot img:visible")
    assert shown.evaluate("image => image.naturalWidth") > 0
    assert tab.page.evaluate("getComputedStyle(document.querySelector('.verdict')).borderLeftWidth") == "6px"


def test_another_metric_and_the_pointer_work(tab: browsing.Tab):
    tab.page.locator("label", has_text="SM clock").click()
    image = tab.page.locator(".plot img.p-sm_clock:visible")
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 5)
    tab.page.locator("#readout", has_text="SM clock").wait_for()


def test_it_fits_a_phone_and_leads_back(tab: browsing.Tab):
    assert tab.is_within_its_width(390, 1280)
    assert tab.page.locator(".back a").get_attribute("href").startswith("job?id=")


def test_it_satisfies_wcag(tab: browsing.Tab):
    assert tab.wcag_violations() == []


def test_injected_content_does_nothing(tab: browsing.Tab):
    assert tab.blocks_injected_content()
