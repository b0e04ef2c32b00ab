"""Test slurm-gpuweb's page in a browser on a real cluster: follow a link to a square, its job and a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urljoin
from xml.etree import ElementTree

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from tests import browsing

_LONG = "#!/bin/sh\nexec simgpu --util 60 --mem-mib 8192 --seconds 300\n"
_SVG = "{http://www.w3.org/2000/svg}"
_WAIT_MS = 90_000

SignIn = Callable[[str], browsing.Tab]


@pytest.fixture
def sign_in(lab: Lab) -> Iterator[SignIn]:
    """Return a function that opens a user's link from `slurm-gpu web` in a browser."""
    tabs = []
    with browsing.chromium() as browser:

        def open_link(user: str) -> browsing.Tab:
            link = json.loads(lab.output(["slurm-gpu", "web", "--json"], user=user))["url"]
            tabs.append(browsing.Tab(browser, link))
            tabs[-1].page.locator("#frame[data-drawn]").wait_for(timeout=_WAIT_MS)
            return tabs[-1]

        yield open_link
        for tab in tabs:
            tab.context.close()


def _focus_job(tab: browsing.Tab, job: int) -> Any:
    """Highlight the job's squares, focus the first one, and return its description."""
    page = tab.page
    page.fill("#find", str(job))
    page.locator("#found", has_text="1 GPU: 1 job").wait_for(timeout=_WAIT_MS)
    page.focus("#frame")
    page.keyboard.press("n")
    return page.locator("#focused")


def test_a_job_is_followed_from_its_square_to_its_page_and_its_file(lab: Lab, sign_in: SignIn) -> None:
    tab = sign_in("alice")
    page = tab.page
    assert "signin" not in page.url, "no address contains the secret of the link"
    job = lab.submit("alice", "--gpus=1", "--time=5", "--job-name=followed", script=_LONG)
    (interval,) = wait_for(lambda: lab.intervals(job), 60, "the job starts")
    said = _focus_job(tab, job)
    page.locator("#focused", has_text=re.compile(r"Utilisation (5[89]|6[0-2])\b")).wait_for(timeout=_WAIT_MS)
    uuid = lab.nodes[interval.node].at_position(interval.positions[0]).uuid
    for words in (interval.node, uuid, f"Job {job} of alice", "frees by"):
        assert words in said.inner_text()
    assert "followed" in page.inner_text("#mine"), "users see the view of their own jobs by default"

    said.get_by_role("link", name=f"Open job {job}").click()
    page.wait_for_url(f"**/job?id={job}")
    lab.output(["scancel", str(job)])

    def recorded() -> bool:
        page.reload()
        page.locator("#sheets:not([hidden]), #error:not([hidden])").first.wait_for()
        # Accounting may report the end later than the nodes.
        has_ended = page.inner_text("#headline").startswith("Cancelled: ended ")
        return has_ended and bool(page.locator("#gpus td.number").count())

    wait_for(recorded, 120, "its records and its end have come", interval_s=2.0)
    assert "followed" in page.inner_text("h1")
    assert page.locator(".use").count() == 4
    with page.expect_download() as download:
        page.get_by_role("link", name="p25 and p95 of each GPU").click()
    header, row = download.value.path().read_text("utf-8").splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    assert (cells["node"], cells["device"]) == (interval.node, uuid)
    assert float(cells["util_p95_pct"]) == pytest.approx(60, abs=2)

    page.goto(urljoin(page.url, "jobs?state=ended&find=user:alice"))

    def ended() -> list[str]:
        page.reload()
        page.locator("#table td, #table .none:not(:text('Loading'))").first.wait_for(timeout=_WAIT_MS)
        row = page.locator("#table tbody tr", has=page.get_by_role("link", name=str(job), exact=True))
        return [text.replace("\u00a0", " ") for text in row.locator("td").all_inner_texts()]

    shown = wait_for(ended, 120, "Slurm's accounting has the end of the job", interval_s=2.0)
    assert shown[1:5] == ["cancelled", "followed", "alice", "vision"]
    assert shown[7] == "1"
    # The job uses 60 %, but the seconds before its process starts count as well.
    assert re.fullmatch(r"(4[5-9]|5\d|60) %", shown[8]), shown


def test_another_user_s_job_is_shown_only_as_running(lab: Lab, sign_in: SignIn) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", "--job-name=mine-alone", script=_LONG)
    wait_for(lambda: lab.intervals(job), 60, "the job starts")
    tab = sign_in("bob")
    said = _focus_job(tab, job)
    tab.page.locator("#focused", has_text=f"Job {job} of alice").wait_for(timeout=_WAIT_MS)
    assert "visible only to the owner" in said.inner_text()
    assert said.get_by_role("link").count() == 0
    assert "mine-alone" not in tab.page.content()
    lab.output(["scancel", str(job)])


def test_free_gpus_queue_and_the_still_picture_are_of_this_cluster(lab: Lab, sign_in: SignIn) -> None:
    tab = sign_in("carol")
    tab.page.locator("#queue", has_text="No pending jobs.").wait_for(timeout=_WAIT_MS)
    n_gpus = sum(len(node.gpus) for node in lab.nodes.values())
    free = tab.page.inner_text("#free")
    assert sum(int(number) for number in re.findall(r"^\d+ of (\d+)", free, re.MULTILINE)) == n_gpus
    still = tab.context.request.get(urljoin(tab.page.url, "squares.svg"))
    paths = ElementTree.fromstring(still.body()).iter(f"{_SVG}path")
    assert sum(path.attrib["d"].count("M") for path in paths) == n_gpus


def test_a_held_job_is_explained_and_its_page_becomes_that_of_the_running_job(
    lab: Lab, sign_in: SignIn
) -> None:
    """Slurm's accounting does not contain a held job, so the reason comes from the queue."""
    job = lab.submit("alice", "--gpus=1", "--time=5", "--job-name=later", "--hold", script=_LONG)
    page = sign_in("alice").page
    link = page.locator("#mine a", has_text=str(job))
    link.wait_for(timeout=_WAIT_MS)
    link.click()
    page.locator("#wait", has_text="Held by its user. Slurm's reason: JobHeldUser.").wait_for(
        timeout=_WAIT_MS
    )
    assert "later" in page.inner_text("h1")
    shown = lab.output(["slurm-gpu", "job", str(job)], "alice")
    assert "  waits     JobHeldUser: held by its user" in shown.splitlines()
    assert "  waits     JobHeldUser: held by its user" in lab.output(
        ["slurm-gpu", "explain", str(job)], "alice"
    )

    lab.output(["scontrol", "release", str(job)])
    wait_for(lambda: lab.intervals(job), 60, "the job starts")
    page.locator("#headline", has_text="Running").wait_for(timeout=35_000)
    assert page.locator("#wait").is_hidden()
    lab.output(["scancel", str(job)])
