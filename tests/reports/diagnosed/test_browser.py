"""The page of a diagnosis in a real browser: metrics and GPUs are selected without requests."""

from collections.abc import Iterator
from typing import Any

import pytest

from slurm_gpu.reports.diagnosed.document import diagnosis_html
from tests import browsing
from tests.reports.diagnosed.faulty_trainings import a_slow_gpu, page_model


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("diagnosis") / "page.html"
    file.write_text(diagnosis_html(page_model(a_slow_gpu())), "utf-8")
    with browsing.chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1800})
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(file.as_uri())
        yield page


def _shown(tab: Any) -> list[str]:
    return [image.get_attribute("class") for image in tab.locator(".plot img").all() if image.is_visible()]


def test_one_metric_is_seen_and_another_can_be_chosen(tab: Any):
    assert _shown(tab) == ["p-sm_clock v-measured"]
    tab.get_by_text("Power", exact=True).first.click()
    assert _shown(tab) == ["p-power v-measured"]
    tab.get_by_text("Against peers", exact=True).click()
    assert _shown(tab) == ["p-power v-peers"]


def test_the_value_under_the_pointer_is_shown(tab: Any):
    tab.get_by_text("SM clock", exact=True).first.click()
    tab.get_by_text("As measured", exact=True).click()
    box = tab.locator(".plot").bounding_box()
    tab.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + (13.5 / 16) * box["height"])
    readout = tab.locator("#readout").text_content()
    assert readout.startswith("n2 GPU 5 · ")
    assert readout.endswith("SM clock 76 %")
    tab.get_by_text("Against peers", exact=True).click()
    tab.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + (13.5 / 16) * box["height"] + 1)
    assert tab.locator("#readout").text_content().endswith("SM clock −20 % against peers")


def test_the_page_makes_no_requests_and_logs_no_errors(tab: Any):
    assert [url for url in tab.asked if not url.startswith(("file:", "data:"))] == []
    assert tab.said == []


@pytest.mark.parametrize("width", [390, 768])
def test_it_fits_a_small_screen(tab: Any, width: int):
    tab.set_viewport_size({"width": width, "height": 800})
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
