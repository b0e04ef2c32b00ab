"""Test the page of one job in a real browser."""

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.monitor.page.conftest import Tab
from tests.monitor.page.example_clusters import HOSTILE, NOW_S, World
from tests.monitor.page.test_squares import small

_GAP = 255


def run_of(job: str, **more: Any) -> dict[str, Any]:
    """Return the answers for a run with two GPUs, the first of which is idle."""
    percentiles = {
        "util": {"p25": 0, "p95": 97, "unit": "%", "how": "exact"},
        "power": {"p25": 24.1, "p95": 77.2, "unit": "%", "how": "from bins"},
        "tensor": {"p25": None, "p95": None, "unit": "%", "how": "from bins"},
    }
    return {
        "id": job,
        "job_id": 200,
        "full": True,
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "state": "RUNNING",
        "submit_s": NOW_S - 7300,
        "start_s": NOW_S - 7200,
        "end_s": None,
        "elapsed_s": 7200,
        "time_limit_s": 86_400,
        "nodes": "n1",
        "gpu_type": "h100",
        "nGPU": 2,
        "nNODE": 1,
        "WAIT_h": 0.0,
        "uGPUcore": 48.5,
        "uGPUmem": 0,
        "coverage": 0.999,
        "energy_j": 7.2e6,
        "app": None,
        "name": "train",
        "events": [],
        "use": [
            {"resource": "gpu", "used": 0.97, "requested": 2},
            {"resource": "gpu_memory", "used": 40_960, "requested": 81_920},
            {"resource": "cpu", "used": 0, "requested": 16},
            {"resource": "memory", "used": None, "requested": 65_536},
        ],
        "suggestions": [],
        "device_facts": {"GPU-b": {"index": 1}, "GPU-a": {"index": 0}},
        "percentiles": percentiles,
        "by_device": [
            {"node": "n1", "device": "GPU-b", "percentiles": percentiles},
            {"node": "n1", "device": "GPU-a", "percentiles": {"util": percentiles["util"] | {"p95": 0}}},
        ],
    } | more


def course_of(*levels: int) -> dict[str, Any]:
    series = {"util": base64.b64encode(bytes(levels)).decode()}
    return {"width_s": 1024, "start_s": NOW_S - 7200, "series": series}


def world_of(*runs: dict[str, Any]) -> World:
    world = small()
    world.runs["200"] = {"runs": list(runs)}
    devices = [
        {"node": "n1", "device": "GPU-a", "timeline": course_of(0, 0, _GAP, 0)},
        {"node": "n1", "device": "GPU-b", "timeline": course_of(250, 250, _GAP, 250)},
    ]
    world.timelines["200"] = {
        "runs": [
            {"id": run["id"], "job_id": 200, "submit_s": run["submit_s"], "devices": devices} for run in runs
        ]
    }
    return world


def _cells(tab: Tab, row: int) -> list[str]:
    cells = tab.page.locator("#gpus tbody tr").nth(row).locator("td").all_inner_texts()
    return [cell.replace("\u00a0", " ") for cell in cells]


def test_each_gpu_has_its_percentiles_and_a_gap_is_no_zero(job_tab: Callable[[World], Tab]):
    tab = job_tab(world_of(run_of("200")))
    assert _cells(tab, 0) == ["all", "", "0 %", "97 %", "24 %", "77 %"]
    assert _cells(tab, 1) == ["n1", "0", "0 %", "0 %", "–", "–"]
    assert _cells(tab, 2)[:2] == ["n1", "1"]
    heads = tab.page.locator("#gpus th.group").all_inner_texts()
    assert heads == ["Utilisation", "Power (share of the limit) *"], (
        "what comes of bins is marked, what is not there left out"
    )
    assert "except those marked *" in tab.page.inner_text("#gpus-note")
    assert tab.said == []


def test_the_timeline_is_drawn_and_described(job_tab: Callable[[World], Tab]):
    tab = job_tab(world_of(run_of("200")))
    chart = tab.page.locator("#charts canvas")
    assert chart.get_attribute("aria-label") == "Utilisation of 2 GPUs, mean 49\u00a0%"
    box = chart.bounding_box()
    left = 42
    tab.page.mouse.move(box["x"] + left + (box["width"] - left) * 0.1, box["y"] + 40)
    tab.page.locator("#charts small", has_text="50 % (0 % to 100 %)").wait_for()
    tab.page.mouse.move(box["x"] + left + (box["width"] - left) * 0.6, box["y"] + 40)
    tab.page.locator("#charts small", has_text="not measured").wait_for()


def test_the_mean_ends_when_one_gpu_stops_reporting(job_tab: Callable[[World], Tab]):
    """While a node is silent, the mean of the other GPUs is not that of the job."""
    records = [{"node": "n1", "device": "GPU-a", "last_s": NOW_S - 4000, "final": False}]
    records.append({"node": "n1", "device": "GPU-b", "last_s": NOW_S - 60, "final": False})

    def opened(*records: dict[str, Any]) -> Tab:
        world = world_of(run_of("200", devices=list(records)))
        silent, other = world.timelines["200"]["runs"][0]["devices"]
        silent["timeline"], other["timeline"] = course_of(*[0] * 2), course_of(*[250] * 6)
        return job_tab(world)

    def note_at(tab: Tab, share: float) -> str:
        box = tab.page.locator("#charts canvas").bounding_box()
        tab.page.mouse.move(box["x"] + 42 + (box["width"] - 42) * share, box["y"] + 40)
        return str(tab.page.locator("#charts small").inner_text()).replace("\u00a0", " ")

    tab = opened(*records)
    assert note_at(tab, 0.1).endswith("50 % (0 % to 100 %)")
    assert note_at(tab, 0.8).endswith("1 of 2 GPUs reported, 100 %")
    assert "the mean ends where a GPU's data ends" in tab.page.inner_text("#timeline-note")
    released = opened(records[0] | {"final": True}, records[1])
    assert note_at(released, 0.8).endswith(": 100 %")
    assert "the mean ends" not in released.page.inner_text("#timeline-note")


def test_all_means_on_a_page_agree(job_tab: Callable[[World], Tab]):
    use = [{"resource": "gpu", "used": 1.624, "requested": 2}]
    page = job_tab(world_of(run_of("200", uGPUcore=81.2, use=use))).page
    assert re.search(r"GPU\s+81 %\s+mean of 2 GPUs", page.inner_text("#use").replace("\u00a0", " "))
    assert page.locator("#charts small").inner_text().replace("\u00a0", " ") == "mean 81 %"


def test_facts_limits_and_files_are_there(job_tab: Callable[[World], Tab]):
    tab = job_tab(world_of(run_of("200")))
    facts = tab.page.inner_text("#facts").replace("\u00a0", " ")
    for words in ("2 × h100", "2 kWh", "99 % of the time"):
        assert words in facts
    links = [link.get_attribute("href") for link in tab.page.locator("#downloads a").all()]
    assert links == [f"api/v1/jobs/200{part}?format=csv" for part in ("", "/timeline", "/window")]


def test_a_running_job_shows_when_its_nodes_last_reported_and_energy_in_a_fitting_unit(
    job_tab: Callable[[World], Tab],
):
    devices = [{"node": "n1", "last_s": NOW_S - 9000}, {"node": "n1", "last_s": NOW_S - 7200}]
    tab = job_tab(world_of(run_of("200", devices=devices, energy_j=7200.0)))
    facts = tab.page.inner_text("#facts").replace("\u00a0", " ")
    assert "2 Wh" in facts
    started = re.search(r"Started\s+(.*)", facts)
    assert started is not None
    assert note(tab) == f"As of {started[1]}, 2 h ago.", "the newest record ends when the job started"
    later = {"node": "n2", "last_s": NOW_S - 6600}
    gone = {"node": "n3", "last_s": NOW_S - 9000, "final": True}
    tab = job_tab(world_of(run_of("200", devices=[*devices, later, gone])))
    assert re.match(r"As of \S+ to \S+, ", note(tab))
    silent = {"node": "n2", "last_s": NOW_S - 8000}
    tab = job_tab(world_of(run_of("200", devices=[*devices, silent])))
    assert re.search(r"; n2 has not reported since \d\d:\d\d", note(tab))
    ended = job_tab(world_of(run_of("200", devices=devices, state="COMPLETED", end_s=NOW_S - 50)))
    assert note(ended) == ""


def note(tab: Tab) -> str:
    return str(tab.page.inner_text("#use-note")).replace("\u00a0", " ")


def headline(tab: Tab) -> str:
    return str(tab.page.inner_text("#headline")).replace("\u00a0", " ")


@pytest.mark.parametrize(("coverage", "text"), [(0.999, "99 %"), (0.29, "29 %"), (1.0, "100 %")])
def test_only_a_job_that_was_measured_all_the_time_is_measured_100_percent(
    job_tab: Callable[[World], Tab], coverage: float, text: str
):
    facts = job_tab(world_of(run_of("200", coverage=coverage))).page.inner_text("#facts")
    assert f"{text} of the time" in facts.replace("\u00a0", " ")


def test_a_pending_job_shows_its_wait_and_no_file_without_data(job_tab: Callable[[World], Tab]):
    pending = run_of("200", state="PENDING", start_s=None, WAIT_h=None, by_device=[], submit_s=NOW_S - 60)
    world = world_of(pending)
    world.timelines["200"] = {"runs": []}
    tab = job_tab(world)
    assert headline(tab) == "Pending for 1 min."
    assert tab.page.inner_text("#downloads") == ""


def queued_job(**more: Any) -> dict[str, Any]:
    """Return a pending job in the queue; `wait` overrides parts of the explanation."""
    wait = {
        "reason": "Priority",
        "meaning": "other jobs have a higher priority",
        "dependency": None,
        "place": 4,
        "n_jobs": 12,
        "gpus_ahead": 16,
        "start_s": NOW_S + 3600,
        "forecast": {"forecast": None, "accuracy": [], "why": "run `slurm-gpu forecast train`"},
    }
    given = more.pop("wait", {})
    return {
        "id": "200",
        "job_id": 200,
        "full": True,
        "name": "train",
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "qos": "normal",
        "state": "PENDING",
        "n_tasks": 1,
        "n_nodes": 2,
        "n_gpus": 8,
        "submit_s": NOW_S - 600,
        "start_s": NOW_S + 3600,
        "end_s": None,
        "time_limit_s": 7200,
        "wait": None if given is None else wait | given,
    } | more


def test_a_pending_job_shows_why_it_waits_and_when_it_starts(job_tab: Callable[[World], Tab]):
    """Accounting does not list held or dependent jobs, so the page uses the queue."""
    world = small()
    world.queued["200"] = queued_job()
    page = job_tab(world).page
    assert "Job 200 · train" in page.inner_text("#job")
    wait = page.inner_text("#wait").replace("\u00a0", " ")
    assert "Other jobs have a higher priority. Slurm's reason: Priority." in wait
    assert "Place 4 of 12 pending jobs in partition gpu, behind 3 jobs" in wait
    assert "which request 16 GPUs" in wait
    assert "Slurm's estimated start: " in wait
    assert "forecast train" not in wait, "a user cannot train the model"
    facts = page.inner_text("#facts").replace("\u00a0", " ")
    assert re.search(r"Time limit\s+2 h", facts)
    assert "–" not in facts
    assert page.locator(".measured:visible").count() == 0


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        ({"place": 1}, "Place 1 of 12 pending jobs in partition gpu."),
        ({"place": 1, "n_jobs": 1}, "No other job is pending in partition gpu."),
        ({"place": 2, "gpus_ahead": None}, "behind 1 job."),
        ({"reason": "Dependency", "dependency": "afterok:12(unfulfilled)"}, "Dependency: afterok:12"),
        ({"reason": "Strange", "meaning": None}, "Strange."),
        ({"start_s": None}, "Slurm has not estimated the start yet."),
    ],
)
def test_the_place_and_the_reason_are_in_words(
    job_tab: Callable[[World], Tab], wait: dict[str, Any], text: str
):
    world = small()
    world.queued["200"] = queued_job(wait=wait)
    assert text in job_tab(world).page.inner_text("#wait").replace("\u00a0", " ")


def test_a_pending_page_becomes_that_of_the_running_job(job_tab: Callable[[World], Tab]):
    """Accounting reports the start later than the queue."""
    world = world_of(
        run_of("200", state="PENDING", start_s=None, WAIT_h=None, by_device=[], submit_s=NOW_S - 600)
    )
    world.queued["200"] = queued_job()
    tab = job_tab(world)
    tab.page.clock.install()
    tab.page.reload()
    tab.page.locator("#wait:visible").wait_for()
    world.queued["200"] = queued_job(state="RUNNING", start_s=NOW_S - 5, end_s=NOW_S + 7195, wait=None)
    tab.page.clock.fast_forward(35_000)
    tab.page.locator("#headline", has_text="Running").wait_for()
    assert tab.page.locator("#wait").is_hidden()
    assert tab.page.locator("#timeline-title").is_visible()


def test_alerts_of_a_job_are_shown_with_advice(job_tab: Callable[[World], Tab]):
    world = world_of(run_of("200"))
    world.alerts = [
        {
            "job_id": 200,
            "id": "200",
            "user": "alice",
            "alert": "partly_unused",
            "squares": [[12, 12]],
            "since_s": NOW_S - 600,
            "coverage": 1.0,
        },
    ]
    tab = job_tab(world)
    assert "Request as many GPUs as the program uses" in tab.page.inner_text("#advice")


def test_it_leads_to_the_diagnosis_of_the_run_that_is_shown(job_tab: Callable[[World], Tab]):
    devices = [{"node": "n1", "device": "GPU-a"}]
    earlier = run_of("200", submit_s=NOW_S - 90_000, end_s=NOW_S - 80_000, devices=devices)
    tab = job_tab(world_of(run_of("200", devices=devices), earlier))
    link = tab.page.locator("#diagnosis")
    assert link.get_attribute("href") == f"diagnosis?id=200&run={NOW_S - 7300}"
    tab.page.locator("#runs").select_option(index=1)
    assert link.get_attribute("href") == f"diagnosis?id=200&run={NOW_S - 90_000}"


@pytest.mark.parametrize("more", [{"full": False}, {"start_s": None}, {"devices": []}])
def test_a_job_that_cannot_be_diagnosed_has_no_link(job_tab: Callable[[World], Tab], more: dict[str, Any]):
    tab = job_tab(world_of(run_of("200", **({"devices": [{"node": "n1", "device": "GPU-a"}]} | more))))
    assert not tab.page.locator("#diagnosis").is_visible()


def test_an_earlier_run_is_chosen(job_tab: Callable[[World], Tab]):
    earlier = run_of("200", submit_s=NOW_S - 90_000, state="PREEMPTED", end_s=NOW_S - 80_000)
    tab = job_tab(world_of(run_of("200"), earlier))
    tab.page.locator("#runs").select_option(index=1)
    assert headline(tab).startswith("Preempted: ended ")


def test_a_job_that_may_not_be_seen_is_no_page(job_tab: Callable[[World], Tab]):
    tab = job_tab(small())
    assert "Job 200 is neither pending nor running" in tab.page.inner_text("#error")
    assert tab.page.locator("#sheets").is_hidden()


def test_another_users_run_shows_only_that_it_runs(job_tab: Callable[[World], Tab]):
    hidden = run_of(
        "200", full=False, name=None, percentiles=None, by_device=None, uGPUcore=None, energy_j=None
    )
    world = world_of(hidden)
    world.timelines["200"]["runs"][0]["devices"] = None
    tab = job_tab(world)
    assert "Only the owner and operators can see the data of this run." in tab.page.inner_text("#gpus")
    assert tab.page.inner_text("#timeline-note") == (
        "Only the owner and operators can see the timeline of this run."
    )
    assert tab.page.locator("#downloads a").count() == 0
    assert tab.said == []


def test_a_run_without_a_timeline_has_none_for_its_owner(job_tab: Callable[[World], Tab]):
    world = world_of(run_of("200"))
    world.timelines["200"]["runs"][0]["devices"] = []
    assert job_tab(world).page.inner_text("#timeline-note") == "No timeline of this run is stored."


def test_hostile_names_are_text_and_do_nothing(job_tab: Callable[[World], Tab]):
    bad = dict.fromkeys(
        ("user", "account", "partition", "nodes", "gpu_type", "app", "name", "state"), HOSTILE[0]
    )
    event = {"at_s": NOW_S, "node": HOSTILE[1], "kind": HOSTILE[0], "data": {HOSTILE[0]: HOSTILE[1]}}
    world = world_of(run_of(HOSTILE[0], **bad, events=[event]))
    series = world.timelines["200"]["runs"][0]["devices"][0]["timeline"]["series"]
    series[HOSTILE[1]] = series["util"]
    tab = job_tab(world)
    assert HOSTILE[0] in tab.page.inner_text("h1")
    assert HOSTILE[1] in tab.page.inner_text("#charts")
    assert tab.page.evaluate("[document.scripts.length, document.images.length]") == [2, 0]
    assert tab.said == []


def test_events_of_a_job_are_described(job_tab: Callable[[World], Tab]):
    event = {"at_s": NOW_S, "node": "n1", "kind": "xid", "data": {"code": 79, "device": "GPU-a"}}
    tab = job_tab(world_of(run_of("200", events=[event])))
    assert "code 79, device GPU-a" in tab.page.inner_text("#events")


def test_nothing_is_wider_than_the_screen(job_tab: Callable[[World], Tab]):
    data = {"of": "GPU-" + 12 * "0123456789", "code": 79}
    event = {"at_s": NOW_S, "node": "n1", "kind": "xid", "data": data}
    tab = job_tab(world_of(run_of("200", events=[event], nodes="n[" + 90 * "1,3," + "5]")))
    assert tab.is_within_its_width(1280, 390)


def test_the_page_has_the_theme_sign_out_and_search_of_all_pages(opened: Callable[..., Tab]):
    world = world_of(run_of("200"))
    tab = opened(world, "job?id=200")
    tab.page.locator("#facts dd").first.wait_for()
    assert tab.page.title() == "Job 200 of neuron"
    assert tab.page.inner_text("#user") == "alice"
    before = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in ("light", "dark"):
        tab.page.click("#theme")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    tab.page.fill("#find", "bob")
    tab.page.press("#find", "Enter")
    tab.page.wait_for_url("**/jobs?find=bob")
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.wait_for_url("**/signin")
    assert tab.served.signed_out == ["1"]
