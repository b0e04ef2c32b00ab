"""Test the parts of the page of one job: its first line, bars, suggestions, limits, tasks and verdict."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.monitor.page.conftest import Tab
from tests.monitor.page.example_clusters import HOSTILE, NOW_S, World
from tests.monitor.page.test_job import headline, queued_job, run_of, world_of
from tests.monitor.page.test_squares import small


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, r"Running\. Ends by \w+ \d\d:\d\d, in 22 h\."),
        ({"time_limit_s": None}, r"Running for 2 h, without a time limit\."),
        ({"time_limit_s": 60}, r"Running, at its time limit\."),
        ({"state": "FAILED", "end_s": NOW_S - 60, "exit_code": "3:0"}, r"Failed with exit code 3: ended .*"),
        ({"state": "FAILED", "end_s": NOW_S - 60, "exit_code": "0:9"}, r"Failed by signal 9: ended .*"),
        ({"state": "OUT_OF_MEMORY", "end_s": NOW_S - 60}, r"Out of memory: ended \d\d:\d\d after 2 h\."),
        (
            {"state": "CANCELLED", "end_s": NOW_S - 60, "start_s": None, "elapsed_s": 0},
            r"Cancelled: ended \d\d:\d\d, never started\.",
        ),
    ],
)
def test_the_first_line_names_the_state_and_the_end(
    job_tab: Callable[[World], Tab], changes: dict[str, Any], text: str
):
    assert re.fullmatch(text, headline(job_tab(world_of(run_of("200", **changes)))))


def test_bars_show_the_used_part_of_each_request_and_no_gap_as_0(job_tab: Callable[[World], Tab]):
    tab = job_tab(world_of(run_of("200")))
    uses = [text.replace("\u00a0", " ").split("\n") for text in tab.page.locator(".use").all_inner_texts()]
    assert [[part for part in use if part] for use in uses] == [
        ["GPU", "49 %", "mean of 2 GPUs"],
        ["GPU memory", "40 of 80 GiB", "maximum of one GPU, mean 0 %"],
        ["CPU", "0 of 16", "mean of busy CPUs"],
        ["Host memory", "not measured", "64 GiB requested"],
    ]
    assert tab.page.locator(".bar.unknown").count() == 1
    widths = [bar.evaluate("(bar) => bar.style.width") for bar in tab.page.locator(".use .bar i").all()]
    assert widths == ["48.5%", "50%", "0%", "0%"]


def test_suggestions_are_listed_with_their_options_as_code(job_tab: Callable[[World], Tab]):
    texts = [f"The run used 11 of 64 GiB: --mem=16G. {HOSTILE[0]}", "Took 1h: --time=1-02:00:00. Shorter."]
    tab = job_tab(world_of(run_of("200", state="COMPLETED", end_s=NOW_S - 50, suggestions=texts)))
    assert tab.page.locator("#suggestions li").all_inner_texts() == texts
    assert tab.page.locator("#suggestions code").all_inner_texts() == ["--mem=16G", "--time=1-02:00:00"]
    assert job_tab(world_of(run_of("200"))).page.locator("#suggestions").is_hidden()


def test_the_owner_of_a_running_job_sees_their_limits(job_tab: Callable[[World], Tab]):
    world = world_of(run_of("200"))
    world.me["limits"][0]["account"] = "vision"
    world.me["limits"][1]["account"] = "nlp"
    world.me["user"] = "alice"
    page = job_tab(world).page
    page.locator("#limits li", has_text="GPUs running").wait_for()
    assert page.locator("#limits li", has_text="GPUs running + pending").count() == 0, "another account"
    ended = world_of(run_of("200", state="COMPLETED", end_s=NOW_S - 50))
    ended.me["user"] = "alice"
    other = world_of(run_of("200"))
    other.me["user"] = "bob"
    for world in (ended, other):
        page = job_tab(world).page
        page.locator("#user", has_text=world.me["user"]).wait_for()
        assert page.locator("#limits").is_hidden()


def test_a_viewer_signs_out_on_the_page_of_a_job(job_tab: Callable[[World], Tab]):
    tab = job_tab(world_of(run_of("200")))
    tab.page.click("#signout")
    tab.page.wait_for_url("**/signin")
    assert tab.served.signed_out == ["1"]


def array_run(task: int, state: str, **more: Any) -> dict[str, Any]:
    own = {"id": f"200_{task}", "array_job_id": 200, "array_task": task, "submit_s": NOW_S - 7300 - task}
    return run_of("200", state=state, **own | more)


def test_an_array_shows_its_tasks_by_state_with_links(job_tab: Callable[[World], Tab]):
    world = world_of(
        array_run(3, "RUNNING"),
        array_run(1, "COMPLETED", end_s=NOW_S - 60),
        array_run(2, "FAILED", end_s=NOW_S - 60),
        array_run(2, "PREEMPTED", end_s=NOW_S - 600, submit_s=NOW_S - 9000),
    )
    world.queued["200"] = queued_job(id="200_5-8:2,10%1", n_tasks=3)
    page = job_tab(world).page
    squares = page.locator("#tasks a")
    assert squares.all_inner_texts() == [
        "Task 1: completed",
        "Task 2: failed",
        "Task 3: running",
        *(f"Task {number}: pending" for number in (5, 7, 10)),
    ]
    assert squares.nth(2).get_attribute("href") == "job?id=200_3"
    legend = page.locator("#tasks .legend span").all_inner_texts()
    assert legend == ["3 pending", "1 running", "1 completed", "1 failed"]
    assert page.inner_text("h1") == "Array job 200 · train · 6 tasks", "not the name of the newest task"
    assert page.title().startswith("Array job 200")


def test_an_array_of_too_many_tasks_shows_only_their_number(job_tab: Callable[[World], Tab]):
    world = small()
    world.queued["200"] = queued_job(id="200_0-999", n_tasks=1000)
    page = job_tab(world).page
    assert page.inner_text("#tasks .legend") == "1,000 pending"
    assert page.locator("#tasks a").count() == 0


def test_pending_tasks_that_slurm_does_not_list_are_counted(job_tab: Callable[[World], Tab]):
    """Slurm shortens a long list, even within a number."""
    world = small()
    world.queued["200"] = queued_job(id="200_1,3,5-7,12...", n_tasks=20)
    page = job_tab(world).page
    assert page.locator("#tasks a").count() == 5
    assert page.inner_text("#tasks .legend") == "20 pending"
    assert "15 pending tasks more" in page.inner_text("#tasks")
    assert page.inner_text("h1").endswith(" · 20 tasks")


def test_the_page_of_a_task_leads_to_its_array(job_tab: Callable[[World], Tab]):
    page = job_tab(world_of(run_of("200", array_job_id=190, array_task=4))).page
    assert page.locator("#tasks").is_hidden()
    assert page.locator("#facts a").get_attribute("href") == "job?id=190"
    assert page.inner_text("h1").startswith("Job 200 ")


TWO_GPUS = [{"node": "n1", "device": device, "last_s": NOW_S - 60} for device in ("GPU-a", "GPU-b")]


def verdict_of(**more: Any) -> dict[str, Any]:
    verdict = {
        "cause": "slow or failing GPU",
        "kind": "clocks",
        "suspect": True,
        "confidence": 0.914,
        "since_s": NOW_S - 3600,
        "until_s": None,
        "evidence": [{"text": f"n1 GPU 1 works at 55 % {HOSTILE[0]}"}],
        "why_not": [],
        "next_step": "Ask the operators.",
    }
    return {"by": "the timeline", "verdict": verdict | more}


def test_the_verdict_of_a_run_is_shown_in_place(job_tab: Callable[[World], Tab]):
    world = world_of(run_of("200", devices=TWO_GPUS))
    world.diagnoses["200"] = verdict_of()
    tab = job_tab(world)
    tab.page.locator("#verdict .reason").wait_for()
    text = tab.page.inner_text("#verdict").replace("\u00a0", " ")
    assert "Slow or failing GPU: clocks, 91 % confidence (a suspicion), since " in text
    assert f"n1 GPU 1 works at 55 % {HOSTILE[0]}" in text
    assert "Next step: Ask the operators." in text
    assert f"/api/v1/jobs/200/diagnosis?run={NOW_S - 7300}" in tab.served.asked


def test_a_missing_verdict_says_why(job_tab: Callable[[World], Tab]):
    tab = job_tab(world_of(run_of("200", devices=TWO_GPUS)))
    tab.page.locator("#verdict", has_text="No diagnosis: no such job, or not yours.").wait_for()


@pytest.mark.parametrize("more", [{"devices": TWO_GPUS[:1]}, {"devices": []}, {"full": False}])
def test_a_run_without_peers_is_not_diagnosed_on_its_page(
    job_tab: Callable[[World], Tab], more: dict[str, Any]
):
    tab = job_tab(world_of(run_of("200", **{"devices": TWO_GPUS} | more)))
    tab.page.locator("#user", has_text=tab.served.world.me["user"]).wait_for()
    assert not [path for path in tab.served.asked if "/diagnosis" in path]
