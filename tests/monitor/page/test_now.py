"""The page of the cluster: a sentence on its state, usage over time, groups of alerts, selected squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.monitor.page.conftest import Tab
from tests.monitor.page.example_clusters import OUT, World, make_world
from tests.monitor.page.test_squares import job_on, small

LIT = "return [...(start.squares.lit ?? []).keys()].filter((k) => start.squares.lit[k]);"
KINDS = ("xid", "never_used", "used_then_idle", "memory_idle", "partly_unused", "throttled")
CAUSES = ("hang", "slow or failing", "communication delay", "input starvation", "workload imbalance")


def alert(world: World, job_id: int, kind: str, squares: Sequence[int], hours: float = 1) -> dict[str, Any]:
    """Return an alert of `kind`, which may also be the cause of a verdict, that began `hours` ago."""
    verdict = {"cause": kind, "kind": "", "confidence": 0.9, "text": "n1 GPU 0", "next_step": "Check it."}
    return {
        "job_id": job_id,
        "id": str(job_id),
        "user": "alice",
        "alert": kind if kind in KINDS else "unhealthy",
        "squares": [[square, square] for square in squares],
        "since_s": world.as_of_s - 3600 * hours,
        "coverage": 1.0,
        "verdict": None if kind in KINDS else verdict,
    }


def with_alerts(*alerts: tuple[int, str, Sequence[int], float]) -> World:
    world = small()
    world.alerts = [alert(world, *one) for one in alerts]
    return world


def headings(tab: Tab) -> list[str]:
    return [text.replace("\u00a0", " ") for text in tab.page.locator("#attention .opens").all_inner_texts()]


# The status


def test_the_status_sums_up_idle_gpus_and_nodes_out_of_service(opened: Callable[..., Tab]) -> None:
    world = with_alerts((104, "never_used", [4], 2), (200, "used_then_idle", [12, 13], 10))
    world.frames["state"][:4] = bytes([OUT]) * 4
    tab = opened(world, "?view=all").ready()
    status = tab.page.inner_text("#status").replace("\u00a0", " ")
    assert status.startswith("2 jobs have 3 idle GPUs, 22 GPU-hours so far; ")
    assert " out of service." in status


def test_a_gpu_with_several_alerts_counts_once(opened: Callable[..., Tab]) -> None:
    alerts = (
        (104, "partly_unused", [4, 5], 1),
        (104, "memory_idle", [5, 6], 4),
        (200, "never_used", [12], 2),
    )
    tab = opened(with_alerts(*alerts), "?view=all").ready()
    status = tab.page.inner_text("#status").replace("\u00a0", " ")
    assert status.startswith("2 jobs have 4 idle GPUs, 11 GPU-hours so far"), "1 + 4 + 4 + 2"


def test_a_job_that_hangs_is_not_also_listed_as_idle(opened: Callable[..., Tab]) -> None:
    tab = opened(
        with_alerts((104, "hang", [4, 5], 1), (104, "used_then_idle", [4, 5], 1)), "?view=all"
    ).ready()
    assert len(headings(tab)) == 1
    assert "hang" in headings(tab)[0]
    assert (
        tab.page.inner_text("#status").replace("\u00a0", " ").startswith("1 job has 2 idle GPUs, 2 GPU-hours")
    )


def test_one_gpu_hour_is_singular(opened: Callable[..., Tab]) -> None:
    tab = opened(with_alerts((104, "never_used", [4], 0.97)), "?view=all").ready()
    status = tab.page.inner_text("#status").replace("\u00a0", " ")
    assert status.startswith("1 job has 1 idle GPU, 1 GPU-hour so far")
    assert "1 idle GPU-hour" in headings(tab)[0]
    assert "GPU-hours" not in headings(tab)[0]


def test_the_status_names_no_idle_gpus_if_there_are_none(opened: Callable[..., Tab]) -> None:
    world = small()
    world.alerts = []
    for square, state in enumerate(world.frames["state"]):
        if state == OUT:
            world.frames["state"][square] = 0
    tab = opened(world, "?view=all").ready()
    assert tab.page.inner_text("#status") == "No job has idle GPUs, and all nodes are in service."


def test_users_read_the_status_of_their_own_jobs(opened: Callable[..., Tab]) -> None:
    world = small()
    world.me |= {"operator": False, "user": "zoe"}
    world.jobs[300] = job_on(300, [[7, 7]], user="zoe")
    start_s = world.as_of_s + 60
    world.jobs[301] = job_on(
        301, [], user="zoe", state="PENDING", reason="Priority", start_s=start_s, n_gpus=2
    )
    tab = opened(world).ready()
    status = tab.page.inner_text("#status")
    assert status.startswith("Your job runs on 1 GPU, and 1 job is pending; Slurm expects it to start ")


# Groups of alerts


def test_there_are_at_most_eight_groups_ordered_by_idle_gpu_hours(opened: Callable[..., Tab]) -> None:
    every = [*KINDS, *CAUSES]
    world = with_alerts(*((100 + n, kind, [n], 1 + n) for n, kind in enumerate(every)))
    tab = opened(world, "?view=all").ready()
    found = headings(tab)
    assert len(found) == 8
    hours = [float(text.split("·")[-1].split()[0]) for text in found if "idle GPU-hours" in text]
    assert hours == sorted(hours, reverse=True)
    assert len(hours) == 5, "unused, idle and hanging GPUs"
    assert "idle GPU-hours" not in found[-1]
    assert found[-1].startswith("other alerts")


def test_a_large_cluster_has_few_groups_and_each_opens_on_a_click(opened: Callable[..., Tab]) -> None:
    tab = opened(make_world(), "?view=all").ready()
    assert 1 < len(headings(tab)) <= 8
    assert not tab.page.locator("#attention .lights").count()
    group = tab.page.locator("#attention .opens").first
    tab.drawn_after(group.click)
    assert group.get_attribute("aria-expanded") == "true"
    assert 0 < tab.page.locator("#attention .lights").count() <= 60
    assert tab.ask(LIT), "the group's squares are highlighted"
    tab.drawn_after(group.click)
    assert not tab.page.locator("#attention .lights").count()
    assert tab.ask("return start.squares.lit;") is None


def test_within_a_group_the_job_with_most_idle_gpu_hours_is_first(opened: Callable[..., Tab]) -> None:
    world = with_alerts(
        (104, "never_used", [4], 1), (200, "never_used", [12, 13], 3), (105, "never_used", [5], 2)
    )
    tab = opened(world, "?view=all").ready()
    links = tab.page.locator("#attention .aside a").all_inner_texts()
    assert links == ["200", "105", "104"]


def test_an_alert_that_ends_is_no_longer_highlighted(opened: Callable[..., Tab]) -> None:
    world = with_alerts((104, "never_used", [4], 1), (200, "never_used", [12, 13], 3))
    tab = opened(world, "?view=all").ready()
    tab.drawn_after(tab.page.locator("#attention .lights").first.click)
    assert tab.ask(LIT) == [12, 13]
    tab.drawn_after(lambda: tab.served.change(lambda world: world.alerts.pop()))
    tab.page.locator("#attention .lights").nth(1).wait_for(state="detached")
    tab.page.locator("#found:empty").wait_for(state="attached")
    assert tab.ask("return start.squares.lit;") is None


# Usage over time


def test_usage_is_drawn_and_read_by_pointer_and_keyboard(opened: Callable[..., Tab]) -> None:
    world = small()
    tab = opened(world, "?view=all").ready()
    reading = tab.page.locator("#usage .reading")
    tab.page.locator("#usage svg").wait_for()
    n = world.n
    now = f"{n - 2} of {n} GPUs allocated ({round(100 * (n - 2) / n)} %), {n // 2} busy (50 %), "
    assert now in reading.inner_text().replace("\u00a0", " ")
    assert reading.inner_text().endswith(", 6 requested by 3 jobs")
    tab.page.locator("#usage .course").focus()
    tab.page.keyboard.press("Home")
    assert reading.inner_text().endswith("nothing was recorded")
    tab.page.keyboard.press("ArrowRight")
    assert now in reading.inner_text().replace("\u00a0", " ")
    box = tab.page.locator("#usage .course").bounding_box()
    tab.page.mouse.move(box["x"] + 1, box["y"] + 20)
    assert reading.inner_text().endswith("nothing was recorded")


def test_usage_extends_to_weeks_and_the_address_keeps_the_range(opened: Callable[..., Tab]) -> None:
    tab = opened(small(), "?view=all").ready()
    tab.page.get_by_role("button", name="30 days").click()
    tab.page.locator('#usage [data-days="30"][aria-pressed="true"]').wait_for()
    assert "days=30" in tab.page.evaluate("location.search")
    tab.page.locator("#usage text", has_text="Oct").first.wait_for()
    assert any("usage?days=30" in url for url in tab.asked)


def test_users_see_allocated_gpus_and_not_how_busy_they_are(opened: Callable[..., Tab]) -> None:
    world = small()
    world.me["operator"] = False
    tab = opened(world).ready()
    tab.page.locator("#usage svg").wait_for()
    reading = tab.page.inner_text("#usage .reading")
    assert "allocated" in reading
    assert "busy" not in reading
    assert tab.page.locator("#usage .busy").first.get_attribute("d") == ""
    assert tab.page.locator("#usage .key.busy").is_hidden()


# Squares and jobs


def job_ids(tab: Tab) -> list[str]:
    return list(tab.page.locator("#jobs tbody tr td:nth-child(2)").all_inner_texts())


def test_selected_squares_restrict_the_jobs(opened: Callable[..., Tab]) -> None:
    tab = opened(small(), "?view=all").ready()
    assert len(job_ids(tab)) > 2
    tab.focus(12)
    assert job_ids(tab) == ["200"]
    tab.page.locator("#frame").press("Space")
    tab.page.locator("#frame").press("Home")
    tab.page.locator("#frame").press("ArrowDown")
    assert tab.ask("return start.squares.focus;") == 4
    tab.drawn_after(lambda: tab.page.locator("#frame").press("Space"))
    assert tab.page.inner_text("#found") == "2 GPUs selected"
    assert tab.page.inner_text("#jobs h2") == "Jobs on the 2 selected GPUs"
    assert sorted(job_ids(tab)) == ["104", "200"]
    tab.drawn_after(lambda: tab.page.locator("#frame").press("Escape"))
    assert tab.ask("return start.squares.lit;") is None


def test_a_box_selects_the_squares_that_it_touches(opened: Callable[..., Tab]) -> None:
    tab = opened(small(), "?view=all").ready()
    box = tab.page.locator("#over").bounding_box()
    (ax, ay, side), (bx, by, _) = tab.corner(4), tab.corner(5)
    tab.page.keyboard.down("Shift")
    tab.page.mouse.move(box["x"] + ax + side / 2, box["y"] + ay + side / 2)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + bx + side / 2, box["y"] + by + side / 2, steps=3)
    tab.drawn_after(tab.page.mouse.up)
    tab.page.keyboard.up("Shift")
    assert tab.ask(LIT) == [4, 5]
    assert sorted(job_ids(tab)) == ["104", "105"]


def test_chosen_jobs_are_highlighted_among_the_squares(opened: Callable[..., Tab]) -> None:
    tab = opened(small(), "?view=all").ready()
    chooser = tab.page.get_by_role("button", name="Show job 200 among the squares")
    tab.drawn_after(chooser.click)
    assert tab.ask(LIT) == [12, 13]
    assert tab.page.inner_text("#found") == "2 GPUs of job 200"
    tab.drawn_after(tab.page.get_by_role("button", name="Show job 104 among the squares").click)
    assert tab.ask(LIT) == [4, 12, 13]
    assert len(job_ids(tab)) > 2, "choosing jobs does not hide others"
    tab.drawn_after(tab.page.get_by_role("button", name="Show all").click)
    assert tab.ask("return start.squares.lit;") is None


def test_a_search_restricts_the_jobs_and_is_kept_on_the_other_tabs(opened: Callable[..., Tab]) -> None:
    tab = opened(small(), "?view=all").ready()
    tab.drawn_after(lambda: tab.page.fill("#find", "200"))
    assert job_ids(tab) == ["200"]
    tab.page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    tab.page.wait_for_url("**/jobs?find=200&view=all")
    tab.page.locator("#table td", has_text="200").first.wait_for()
    assert tab.page.input_value("#find") == "200"
    tab.page.get_by_role("navigation").get_by_role("link", name="Now").click()
    tab.page.wait_for_url("**/?find=200&view=all")


# Appearance


def test_the_theme_can_be_chosen_and_is_kept(opened: Callable[..., Tab]) -> None:
    tab = opened(small(), "?view=all", color_scheme="dark").ready()
    page_colour = "getComputedStyle(document.body).backgroundColor"
    dark = tab.page.evaluate(page_colour)
    square = tab.middle(12)
    theme = tab.page.get_by_role("button", name="Theme: system")
    tab.drawn_after(theme.click)
    assert tab.page.get_by_role("button", name="Theme: light").is_visible()
    assert tab.page.evaluate(page_colour) != dark
    assert tab.middle(12) != square
    tab.page.reload()
    tab.ready()
    assert tab.page.evaluate(page_colour) != dark
    tab.page.get_by_role("button", name="Theme: light").click()
    tab.page.get_by_role("button", name="Theme: dark").click()
    assert tab.page.evaluate(page_colour) == dark
    assert tab.page.evaluate("document.documentElement.dataset.theme ?? null") is None


def test_the_icon_shows_alerts_and_old_data(opened: Callable[..., Tab]) -> None:
    world = small()
    world.alerts = []
    tab = opened(world, "?view=all").ready()
    icon = tab.page.locator("#icon")
    assert icon.get_attribute("href").endswith("/icon.svg")
    tab.served.change(lambda world: world.alerts.append(alert(world, 200, "xid", [12])))
    tab.page.locator('#icon[href$="/icon-attention.svg"]').wait_for(state="attached")
    tab.served.status = 503
    tab.served.change()
    tab.page.locator('#icon[href$="/icon-old.svg"]').wait_for(state="attached")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_wall_mode_shows_no_controls(opened: Callable[..., Tab], width: int) -> None:
    tab = opened(small(), "?view=all&wall", viewport={"width": width, "height": 800}).ready()
    for hidden in ("#controls", ".tabs", "#jobs", "footer", "#find"):
        assert tab.page.locator(hidden).first.is_hidden(), hidden
    for shown in ("#frame", "#status", "#tally", "#usage svg"):
        assert tab.page.locator(shown).first.is_visible(), shown
    assert tab.is_within_its_width(width)
