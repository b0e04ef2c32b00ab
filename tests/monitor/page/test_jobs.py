"""Test the page with the tables of jobs in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.page.conftest import Tab
from tests.monitor.page.example_clusters import HOSTILE, NOW_S, World
from tests.monitor.page.test_squares import job_on, small


def cluster() -> World:
    """Return a cluster with three running and two pending jobs."""
    world = small()
    world.frames["util"][4] = 0
    world.jobs = {
        200: job_on(200, [[12, 13]], start_s=NOW_S - 60, end_s=NOW_S + 3600, name="train"),
        201: job_on(201, [[4, 4]], start_s=NOW_S - 7200, user="bob", account="nlp"),
        202: job_on(202, [[5, 8]], start_s=NOW_S - 600, user="carol", full=False, name=None),
        300: pending(300, "Resources", start_s=NOW_S + 600),
        301: pending(301, "Priority", user="bob", n_gpus=8, n_tasks=3),
    }
    world.ended = {
        "": page([ended(9), ended(8, name=HOSTILE[0], nGPU=0.25)], cursor="next"),
        "next": page([ended(7)]),
    }
    return world


def pending(job_id: int, reason: str, **more: Any) -> dict[str, Any]:
    given = {"state": "PENDING", "reason": reason, "n_gpus": 4, "submit_s": NOW_S - 300, "start_s": None}
    return job_on(job_id, []) | given | more


def ended(job_id: int, **more: Any) -> dict[str, Any]:
    return {
        "id": str(job_id),
        "job_id": job_id,
        "submit_s": NOW_S - 9000,
        "name": "train",
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "app": "pytorch",
        "state": "COMPLETED",
        "full": True,
        "nGPU": 4,
        "start_s": NOW_S - 8000,
        "end_s": NOW_S - 800,
        "elapsed_s": 7200,
        "WAIT_h": 1000 / 3600,
        "RUN_h": 2.0,
        "uGPUcore": 75.0,
    } | more


def page(runs: list[dict[str, Any]], cursor: str | None = None) -> dict[str, Any]:
    return {"runs": runs, "cursor": cursor, "matched": None, "since_s": NOW_S - 30 * 86_400}


def listed(tab: Tab) -> list[list[str]]:
    """Return the texts of the table's cells, row by row."""
    tab.page.locator("#table tbody tr").first.wait_for()
    rows = tab.page.locator("#table tbody tr").all()
    return [[text.replace("\u00a0", " ") for text in row.locator("td").all_inner_texts()] for row in rows]


def ids(tab: Tab) -> list[str]:
    return [row[0] for row in listed(tab)]


def test_running_jobs_show_their_use_now_and_when_they_end(opened: Callable[..., Tab]):
    tab = opened(cluster(), "jobs")
    assert ids(tab) == ["200", "202", "201"], "the last started comes first"
    train = listed(tab)[0]
    assert train[1:9] == ["running", "train", "alice", "vision", "gpu", "2", "50 %", "0"]
    assert listed(tab)[1][7:9] == ["–", "–"], "the use of a job of another user is hidden, not 0"
    summary = tab.page.inner_text("#summary")
    assert summary == "3 jobs, 7 GPUs, 1 at 0 % now. GPUs by user: carol 4, alice 2, bob 1"
    assert not tab.said


def test_columns_sort_both_ways_and_the_address_keeps_it(opened: Callable[..., Tab]):
    world = cluster()
    tab = opened(world, "jobs")
    listed(tab)
    tab.page.get_by_role("button", name="GPUs").click()
    assert ids(tab) == ["202", "200", "201"]
    assert tab.page.locator("th[aria-sort=descending]").inner_text().startswith("GPUs")
    tab.page.get_by_role("button", name="GPUs").click()
    assert ids(tab) == ["201", "200", "202"]
    query = tab.page.evaluate("location.search")
    assert query == "?sort=gpus&order=asc"
    assert ids(opened(world, "jobs" + query)) == ["201", "200", "202"]


def test_a_search_finds_users_names_and_nodes(opened: Callable[..., Tab]):
    tab = opened(cluster(), "jobs")
    for find, found in (("bob", ["201"]), ("train", ["200"]), ("n2", ["200", "202"]), ("202", ["202"])):
        tab.page.fill("#find", find)
        tab.page.locator(f"#table tbody tr:nth-child({len(found)}):last-child").wait_for()
        assert ids(tab) == found, find
    tab.page.fill("#find", "nothing")
    assert tab.page.inner_text("#table") == "No job matches."


def test_pending_jobs_show_why_and_when_they_start(opened: Callable[..., Tab]):
    tab = opened(cluster(), "jobs?state=pending")
    first, second = listed(tab)
    assert first[0] == "300", "the first expected start comes first, and unknown ones last"
    assert first[5:8] == ["4", "5 min", "there is no room yet"]
    assert second[5] == "24", "an array's tasks count together"
    assert second[8] == "–"
    tab.page.get_by_role("link", name="300").click()
    tab.page.wait_for_url("**/job?id=300")
    assert tab.page.locator("nav [aria-current]").inner_text() == "Job 300"


def test_ended_jobs_come_in_pages_and_are_sorted_by_the_database(opened: Callable[..., Tab]):
    world = cluster()
    tab = opened(world, "jobs")
    listed(tab)
    tab.page.get_by_role("button", name="Ended").click()
    assert tab.page.locator("#table td", has_text="completed").first.is_visible() or listed(tab)
    tab.page.get_by_role("button", name="Show more").click()
    tab.page.locator("#table tbody tr:nth-child(3)").wait_for()
    assert ids(tab) == ["9", "8", "7"]
    assert listed(tab)[0][6:11] == ["pytorch", "4", "75 %", "2", "17 min"]
    assert listed(tab)[1][2] == HOSTILE[0], "a name is text"
    assert listed(tab)[1][7] == "0.25", "a shard is not rounded"
    assert not tab.page.locator("#more").is_visible()
    tab.page.get_by_role("button", name="Utilisation").click()
    tab.page.locator("th[aria-sort]", has_text="Utilisation").wait_for()
    requests = [path for path in tab.served.asked if path.startswith("/api/v1/runs")]
    assert requests[0].endswith("runs?own=false&find=&sort=end&order=desc")
    assert requests[1].endswith("&cursor=next")
    assert requests[2].endswith("runs?own=false&find=&sort=util&order=desc")
    with tab.page.expect_request("**/runs?own=true&find=vision&*"):
        tab.page.get_by_role("button", name="My jobs").click()
        tab.page.fill("#find", "vision")
    assert not tab.said


def test_newly_ended_jobs_appear_without_moving_the_rows_that_are_read(opened: Callable[..., Tab]):
    world = cluster()
    tab = opened(world, "jobs?state=ended")
    assert ids(tab) == ["9", "8"]
    tab.page.get_by_role("button", name="Show more").click()
    tab.page.locator("#table tbody tr:nth-child(3)").wait_for()
    world.ended[""] = page([ended(200, end_s=NOW_S), ended(9)], cursor="other")

    def end_a_job() -> None:
        """Wait until the page is due, and let the queue change."""
        tab.page.evaluate("performance.now = () => 1e9 + Date.now()")
        del world.jobs[next(iter(world.jobs))]
        tab.served.change()

    tab.page.set_viewport_size({"width": 1280, "height": 120})
    tab.page.evaluate("document.getElementById('table').scrollIntoView(); scrollBy(0, 60)")
    asked = len(tab.served.asked)
    for _ in range(2):  # the page has shown one change when it requests the next one
        with tab.page.expect_response("**/api/v1/jobs?*"):
            end_a_job()
    assert not [path for path in tab.served.asked[asked:] if "/runs" in path]
    tab.page.evaluate("scrollTo(0, 0)")
    end_a_job()
    tab.page.locator("#table tbody tr:nth-child(4)").wait_for()
    assert ids(tab) == ["200", "9", "8", "7"]
    assert not tab.said


def test_a_late_answer_does_not_replace_that_of_a_later_search(opened: Callable[..., Tab]):
    tab = opened(cluster(), "jobs?state=ended")
    listed(tab)
    late: list[Any] = []
    tab.page.route("**/runs?*find=slow*", lambda route: late.append(route))
    with tab.page.expect_request("**/runs?*find=slow*"):
        tab.page.fill("#find", "slow")
    with tab.page.expect_response("**/runs?*find=fast*"):
        tab.page.fill("#find", "fast")
    assert ids(tab) == ["9", "8"]
    with tab.page.expect_response("**/runs?*find=slow*"):
        late[0].fulfill(json=page([ended(1)]))
    assert ids(tab) == ["9", "8"]


def test_users_see_their_own_jobs_first(opened: Callable[..., Tab]):
    world = cluster()
    world.me["operator"] = False
    tab = opened(world, "jobs")
    tab.page.locator("#views [aria-pressed=true]", has_text="My jobs").wait_for()
    assert ids(tab) == ["200"]
    tab.page.get_by_role("button", name="All jobs").click()
    tab.page.locator("#table tbody tr:nth-child(3)").wait_for()
    hidden = tab.page.locator("#table tr", has_text="carol")
    assert hidden.locator("a").count() == 0, "a job that the viewer may not open has no link"
    tab.page.get_by_role("button", name="Ended").click()
    assert not tab.page.locator("#views").is_visible(), "only their own ended jobs are listed"


def test_what_is_shown_can_be_saved_as_csv(opened: Callable[..., Tab], tmp_path: Path):
    world = cluster()
    world.jobs[200]["name"] = '=HYPERLINK("x"),y'
    tab = opened(world, "jobs")
    listed(tab)
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "jobs.csv")
    lines = (tmp_path / "jobs.csv").read_text().splitlines()
    assert download.value.suggested_filename == "running-jobs.csv"
    assert lines[0] == "id,state,name,user,account,partition,gpus,util_pct,idle,start_s,end_s"
    assert lines[1].startswith('200,running,"\'=HYPERLINK(""x""),y",alice,vision,gpu,2,50,0,')
    assert lines[2].split(",")[7:9] == ["", ""]


def test_the_page_needs_a_session_and_fits_a_phone(opened: Callable[..., Tab]):
    tab = opened(cluster(), "jobs", status=401)
    tab.page.locator("#signin").wait_for()
    assert tab.page.locator("#note").is_hidden()
    assert not tab.page.locator("main").is_visible()
    tab = opened(cluster(), "jobs")
    listed(tab)
    assert tab.is_within_its_width(390, 1280)
    assert tab.nameless_controls() == 0
    assert tab.blocks_injected_content()


def test_totals_are_by_user_account_or_application(opened: Callable[..., Tab]):
    tab = opened(cluster(), "jobs?view=all")
    tab.page.locator("#table tbody tr").first.wait_for()
    assert tab.page.inner_text("#summary") == (
        "3 jobs, 7 GPUs, 1 at 0 % now. GPUs by user: carol 4, alice 2, bob 1"
    )
    tab.page.select_option("#by", "account")
    assert tab.page.inner_text("#summary").endswith("GPUs by account: vision 6, nlp 1")
    tab.page.get_by_role("button", name="Ended").click()
    tab.page.locator("#summary", has_text="First 2 jobs").wait_for()
    tab.page.select_option("#by", "app")
    assert tab.page.inner_text("#summary") == "First 2 jobs.", "all are of one application"
    tab.page.get_by_role("button", name="Pending").click()
    assert tab.page.input_value("#by") == "user"


@pytest.mark.parametrize("state", ["running", "pending", "ended"])
def test_tables_need_no_horizontal_scrolling_on_a_phone(opened: Callable[..., Tab], state: str):
    world = cluster()
    world.ended = {"": page([ended(9, name="long-name-of-a-job-without-spaces" * 3)])}
    tab = opened(world, f"jobs?view=all&state={state}", viewport={"width": 390, "height": 800})
    listed(tab)
    assert tab.page.locator("#table").evaluate("(box) => box.scrollWidth <= box.clientWidth")
    first = tab.page.locator("#table tbody tr").first
    titles = first.locator("td").evaluate_all("(cells) => cells.map((cell) => cell.dataset.title)")
    assert titles[0] == "Job"
    lines = first.locator("td").evaluate_all("(cells) => cells.map((cell) => cell.offsetTop)")
    assert max(map(lines.count, lines)) == 2, "two values a line"
    cut = first.locator("td").evaluate_all(
        "(cells) => cells.filter((one) => one.scrollWidth > one.clientWidth).length"
    )
    assert cut == 0
    tab.page.get_by_role("button", name="GPUs").click()
    tab.page.locator("th[aria-sort=descending]", has_text="GPUs").wait_for()


def test_only_columns_that_can_be_sorted_have_a_mark(opened: Callable[..., Tab]):
    tab = opened(cluster(), "jobs?state=ended")
    listed(tab)
    headings = tab.page.locator("#table th").all_inner_texts()
    assert [text[:-1].strip() for text in headings if text[-1] in "↕▼"] == [
        "GPUs",
        "Utilisation",
        "Waited",
        "Ran",
        "Started",
        "Ended",
    ]
    assert headings[-1] == "Ended ▼"


def test_a_printed_page_has_light_colours_whole_columns_and_no_controls(opened: Callable[..., Tab]):
    tab = opened(cluster(), "jobs?view=all&state=ended", color_scheme="dark")
    listed(tab)
    tab.page.emulate_media(media="print", color_scheme="dark")
    tab.page.set_viewport_size({"width": 718, "height": 1000})  # A4 with margins of a centimetre
    assert tab.page.locator("#table").evaluate("(box) => box.scrollWidth <= box.clientWidth")
    for control in ("#states", "#more", "#csv", "#find", "#theme", ".mark"):
        assert tab.page.locator(control).first.is_hidden(), control
    ink = tab.page.locator("#table td").first.evaluate("(cell) => getComputedStyle(cell).color")
    assert max(map(int, ink.removeprefix("rgb(").removesuffix(")").split(","))) < 100
    head = tab.page.locator("#table thead").evaluate("(head) => getComputedStyle(head).display")
    assert head == "table-header-group", "repeated on each page"
