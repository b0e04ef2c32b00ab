"""All pages satisfy WCAG 2.2 AA, as far as axe-core can check it, and fit at 200 % zoom."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.monitor.page.conftest import Tab
from tests.monitor.page.example_clusters import World
from tests.monitor.page.test_job import course_of, queued_job, run_of
from tests.monitor.page.test_jobs import cluster
from tests.monitor.page.test_now import alert


def world() -> World:
    """Return a cluster with jobs in all states, alerts and reservations."""
    found = cluster()
    found.alerts = [alert(found, 200, "never_used", [12, 13]), alert(found, 201, "hang", [4])]
    found.runs["200"] = {"runs": [run_of("200")]}
    devices = [{"node": "n1", "device": "GPU-a", "timeline": course_of(0, 100, 250)}]
    found.timelines["200"] = {
        "runs": [{"id": "200", "submit_s": run_of("200")["submit_s"], "devices": devices}]
    }
    found.queued["300"] = queued_job()
    return found


PAGES = {
    "?view=all": "#usage svg",
    "?view=mine": "#mine li",
    "?view=all&find=200": "#jobs tbody tr",
    "?view=all&wall": "#usage svg",
    "jobs?view=all": "#table tbody tr",
    "jobs?view=all&state=pending": "#table tbody tr",
    "jobs?view=all&state=ended": "#table tbody tr",
    "job?id=200": "#charts figure",
    "job?id=300": "#wait p",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("path", "shown"), PAGES.items())
def test_a_page_satisfies_wcag(opened: Callable[..., Tab], path: str, shown: str, scheme: str) -> None:
    tab = opened(world(), path, color_scheme=scheme)
    tab.page.locator(shown).first.wait_for()
    assert tab.wcag_violations() == []


@pytest.mark.parametrize("path", ["", "jobs", "job?id=200"])
def test_the_sign_in_card_satisfies_wcag(opened: Callable[..., Tab], path: str) -> None:
    tab = opened(world(), path, status=401)
    tab.page.locator("#signin:visible").wait_for()
    assert tab.wcag_violations() == []


@pytest.mark.parametrize(("path", "shown"), PAGES.items())
def test_a_page_fits_at_twice_the_size(opened: Callable[..., Tab], path: str, shown: str) -> None:
    """Test that a window of 1,280 pixels at 200 % zoom needs no horizontal scrolling."""
    tab = opened(world(), path, viewport={"width": 640, "height": 400}, device_scale_factor=2)
    tab.page.locator(shown).first.wait_for()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 640


@pytest.mark.parametrize("state", ["running", "pending", "ended"])
def test_the_page_of_jobs_satisfies_wcag_on_a_phone(opened: Callable[..., Tab], state: str) -> None:
    tab = opened(world(), f"jobs?view=all&state={state}", viewport={"width": 390, "height": 800})
    tab.page.locator("#table tbody tr").first.wait_for()
    assert tab.wcag_violations() == []
