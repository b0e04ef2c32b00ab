"""The page around the squares is kept current, shows the age of old data, and treats names only as text."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.monitor.page.conftest import Tab
from tests.monitor.page.example_clusters import ALLOCATED, GAP, HOSTILE, SHARED, World, make_world
from tests.monitor.page.test_job import queued_job
from tests.monitor.page.test_squares import job_on, small


def hostile() -> World:
    """Names that users, sites and nodes may choose are hostile."""
    world = small()
    bad = HOSTILE * 20
    world.layout["cluster"] = bad[0]
    for number, zone in enumerate(world.layout["zones"]):
        zone["name"] = bad[number]
        for rack in zone["racks"]:
            rack["name"] = bad[number + 1]
            for place, node in enumerate(rack["nodes"]):
                node["name"], node["server_type"] = bad[place], bad[place + 1]
                for gpu in node["gpus"]:
                    gpu["type"] = gpu["uuid"] = bad[place]
    for metric in world.layout["metrics"]:
        metric["title"] = metric["unit"] = bad[1]
    for place, job in enumerate(world.jobs.values()):
        names = ("id", "user", "account", "partition", "name", "reason")
        job |= {name: bad[place + k] for k, name in enumerate(names)}
    for alert in world.alerts:
        alert |= {"id": bad[0], "user": bad[1], "alert": bad[2]}
    for one in world.reservations:
        one |= dict.fromkeys(("user", "gpu_type", "nodes", "error"), bad[0])
    world.me |= {"user": bad[0]}
    for limit in world.me["limits"]:
        limit |= dict.fromkeys(("rule", "on", "key", "unit", "why", "group", "mode"), bad[1])
    return world


@pytest.mark.parametrize("view", ["?view=all", "?view=mine"])
def test_hostile_names_are_text_and_do_nothing(opened: Callable[..., Tab], view: str):
    tab = opened(hostile(), view).ready()
    scripts = tab.page.evaluate("document.scripts.length")
    tab.focus(12)
    tab.page.click("#list summary")
    for summary in tab.page.locator("#queue summary").all():
        summary.click()
    tab.page.fill("#find", HOSTILE[0])
    x, y, side = tab.corner(12)
    box = tab.page.locator("#over").bounding_box()
    tab.page.mouse.move(box["x"] + x + side / 2, box["y"] + y + side / 2)
    tab.page.locator("#tip").wait_for()
    assert HOSTILE[0] in tab.page.inner_text("h1")
    assert any(name in tab.page.inner_text("#list") for name in HOSTILE[:4])
    assert tab.page.evaluate("document.scripts.length") == scripts == 2
    assert tab.page.evaluate("document.images.length") == 0
    assert tab.page.evaluate("[...document.links].every((link) => link.href.startsWith(location.origin))")
    assert all(url.startswith(tab.served.url) for url in tab.asked)
    assert tab.said == []


def test_a_script_or_style_that_got_in_would_not_run(opened: Callable[..., Tab]):
    tab = opened(small()).ready()
    assert tab.blocks_injected_content()


def test_nothing_is_requested_twice(opened: Callable[..., Tab]):
    """The page preloads exactly what its script uses."""
    tab = opened(small()).ready()
    api = [path for path in tab.served.asked if path.startswith("/api/")]
    assert sorted(api) == sorted(set(api))
    assert tab.said == []


def test_a_new_state_is_shown_when_it_is_announced(opened: Callable[..., Tab]):
    tab = opened(small()).ready()

    def change(world: World) -> None:
        world.frames["util"][4] = 93
        world.frames["state"][7] = 1
        world.jobs[300] = job_on(300, [[7, 7]], user="zoe")
        world.changed[300] = world.version + 1
        del world.jobs[200]
        world.gone[200] = world.version + 1

    tab.focus(4)
    tab.served.change(change)
    tab.page.locator("#focused", has_text="Utilisation 93").wait_for()
    assert "Job 300 of zoe" in tab.focus(7)
    assert "Job 200" not in tab.focus(12)
    since = [path for path in tab.served.asked if "jobs?since" in path]
    assert since, "the page did not request only changes"


def test_another_layout_is_taken_as_a_whole(opened: Callable[..., Tab]):
    tab = opened(small()).ready()
    larger = make_world(n_nodes=12, n_zones=1, n_racks=2)

    def change(world: World) -> None:
        world.layout, world.frames, world.jobs = larger.layout, larger.frames, larger.jobs

    tab.served.change(change)
    tab.page.locator("#tally", has_text="96").wait_for()
    assert tab.ask("return [start.squares.places.n, start.cluster.state.length];") == [96, 96]
    assert tab.said == []


def test_an_old_state_is_shown_as_old_and_stays(opened: Callable[..., Tab]):
    tab = opened(small()).ready()
    assert tab.page.locator("#error").is_hidden()
    assert "ago" not in tab.page.inner_text("#age")
    tab.served.now_s += 240
    tab.served.change(lambda world: None)
    tab.page.locator("#error", has_text="has not answered since").wait_for()
    assert "4 min ago" in tab.page.inner_text("#age").replace("\u00a0", " ")
    assert "64" in tab.page.inner_text("#tally")


def test_while_slurmctld_is_down_its_data_is_shown_as_old(opened: Callable[..., Tab]):
    tab = opened(small()).ready()

    def change(world: World) -> None:
        world.slurm_s, world.as_of_s = world.as_of_s, world.as_of_s + 240

    tab.served.now_s += 240
    tab.served.change(change)
    tab.page.locator("#error", has_text="slurmctld has not answered since").wait_for()
    assert "4 min ago" in tab.page.inner_text("#age").replace("\u00a0", " ")


def test_an_address_with_a_metric_that_is_none_shows_the_first_one(opened: Callable[..., Tab]):
    tab = opened(small(), "?metric=<b>").ready()
    assert tab.page.locator("#error").is_hidden()
    assert tab.page.locator("#metric").input_value() == "util"
    assert "Utilisation 50" in tab.focus(12)


@pytest.mark.parametrize(("status", "message"), [(401, "You are no longer signed"), (503, "No answer since")])
def test_failed_requests_keep_the_known_values(opened: Callable[..., Tab], status: int, message: str):
    tab = opened(small()).ready()
    tab.served.status = status
    tab.served.change()
    tab.page.locator("#error", has_text=message).wait_for()
    assert "50\u00a0%" in tab.focus(12)
    tab.served.status = None
    tab.served.change()
    tab.page.locator("#error").wait_for(state="hidden")


@pytest.mark.parametrize("path", ["", "jobs", "job?id=200"])
def test_a_visitor_who_is_not_signed_in_gets_a_card_with_the_command(opened: Callable[..., Tab], path: str):
    tab = opened(small(), path, status=401)
    tab.page.locator("#signin code", has_text="slurm-gpu web").wait_for()
    assert tab.page.locator("#error").is_hidden()
    for useless in (".search", "#views"):
        assert not tab.page.locator(f"{useless}:visible").count()
    assert tab.page.locator("h1").is_visible()


def test_controls_are_inert_until_the_layout_arrives(opened: Callable[..., Tab]):
    tab = opened(small(), status=503)
    tab.page.locator("#error", has_text="No answer since").wait_for()
    main = tab.page.locator("main")
    assert (main.get_attribute("aria-busy"), main.get_attribute("inert")) == ("true", "")
    tab.served.status = None
    tab.served.change()
    tab.page.reload()
    tab.ready()
    assert (main.get_attribute("aria-busy"), main.get_attribute("inert")) == (None, None)


def test_before_sign_in_there_is_no_black_box_instead_of_the_squares(opened: Callable[..., Tab]):
    tab = opened(small(), status=401)
    tab.page.locator("#signin:visible").wait_for()
    for empty in ("#map", "#attention", "#free", "#queue", "footer > p:first-child", "#age", "#tally"):
        assert tab.page.locator(empty).is_hidden()
    pixel = "start.squares.base.getContext('2d').getImageData(0, 0, 1, 1).data"
    assert tab.ask(f"return Array.from({pixel});") == [0, 0, 0, 0]


def test_a_concern_lights_its_squares(opened: Callable[..., Tab]):
    world = small()
    world.alerts = [
        {
            "job_id": 200,
            "id": "200",
            "user": "alice",
            "alert": "never_used",
            "squares": [[12, 13]],
            "since_s": world.as_of_s - 600,
            "coverage": 1.0,
        },
    ]
    tab = opened(world, "?view=all").ready()
    row = tab.page.locator("#attention .lights")
    assert "allocated, never used" in tab.page.inner_text("#attention")
    assert "10\u00a0min" in row.inner_text()
    assert "· 2 GPUs ·" in tab.page.inner_text("#attention")
    tab.drawn_after(row.click)
    assert tab.ask("return [...start.squares.lit.keys()].filter((k) => start.squares.lit[k]);") == [12, 13]
    assert tab.page.inner_text("#found") == "2 GPUs of job 200: allocated, never used"
    tab.drawn_after(tab.page.locator("#attention .lights").click)
    assert tab.ask("return start.squares.lit === null;")


def test_alerts_are_called_incomplete_while_idle_jobs_may_be_missing(opened: Callable[..., Tab]):
    world = small()
    world.complete_from_s = world.as_of_s + 120
    early = opened(world).ready().page.inner_text("#attention")
    assert "Alerts are incomplete until 11:08: jobs that stopped using their GPUs may be missing." in early
    assert "No running job needs attention" not in early
    world.complete_from_s = world.as_of_s - 1
    assert "No running job needs attention." in opened(world).ready().page.inner_text("#attention")


def test_an_alert_shows_the_number_of_affected_gpus(opened: Callable[..., Tab]):
    world = small()
    world.alerts = [
        {
            "job_id": 200,
            "id": "200",
            "user": "alice",
            "alert": "throttled",
            "squares": [[13, 13]],
            "since_s": world.as_of_s - 600,
            "coverage": 1.0,
        },
    ]
    tab = opened(world, "?view=all").ready()
    assert "· 1 of 2 GPUs ·" in tab.page.inner_text("#attention")


def test_an_update_leaves_the_keyboard_and_what_was_opened(opened: Callable[..., Tab]):
    world = small()
    world.alerts = [
        {
            "job_id": key,
            "id": str(key),
            "user": "alice",
            "alert": "never_used",
            "squares": [[square, square]],
            "since_s": world.as_of_s - 600,
            "coverage": 1.0,
        }
        for key, square in ((104, 4), (105, 5))
    ]
    world.jobs[900] = job_on(900, [], state="PENDING", reason="Priority", start_s=world.as_of_s + 60)
    tab = opened(world, "?view=all").ready()
    tab.page.locator("#queue summary").click()
    tab.page.locator("#attention .lights").nth(1).focus()

    def change(world: World) -> None:
        world.alerts[0]["alert"] = "xid"
        world.jobs[901] = job_on(901, [], state="PENDING", reason="Resources", start_s=world.as_of_s + 90)
        world.changed[901] = world.version + 1

    tab.served.change(change)
    tab.page.locator("#queue td", has_text="901").wait_for()
    tab.page.locator("#attention", has_text="GPU error").wait_for()
    assert tab.page.evaluate("document.activeElement.dataset.key") == "105 never_used"


def test_a_user_sees_their_jobs_limits_and_what_to_do(opened: Callable[..., Tab]):
    world = small()
    world.me |= {
        "operator": False,
        "user": "zoe",
        "waits": [
            {
                "job_id": 301,
                "id": "301",
                "why": None,
                "accuracy": ["right so far: 2 of 3 forecasts"],
                "forecast": {
                    "at_s": world.as_of_s,
                    "lower_s": 600,
                    "median_s": 3600,
                    "upper_s": 7200,
                    "judged": None,
                },
            }
        ],
    }
    world.jobs[300] = job_on(300, [[7, 7]], user="zoe", name="mine")
    world.jobs[301] = job_on(301, [], user="zoe", state="PENDING", reason="Priority", name="later")
    world.alerts = [
        {
            "job_id": 300,
            "id": "300",
            "user": "zoe",
            "alert": "never_used",
            "squares": [[7, 7]],
            "since_s": world.as_of_s - 600,
            "coverage": 1.0,
        },
    ]
    tab = opened(world).ready()
    tab.page.locator("#mine li").first.wait_for()
    mine = tab.page.inner_text("#mine")
    assert "Slurm's estimated start" not in mine, "the estimate is in the past"
    for words in ("300 mine", "cancel it", "301 later", "others come first", "Forecast: probably"):
        assert words in mine
    assert "of alice" not in mine
    limits = tab.page.inner_text("#limits")
    for words in (
        "12 of 16\u00a0GPUs",
        "41 of 200",
        "time limit",
        "1\u00a0d",
        "keeps waiting",
        "Usage as of ",
    ):
        assert words in limits
    assert tab.page.locator("#attention").is_hidden()
    assert tab.page.locator("#views").is_hidden()


@pytest.mark.parametrize("is_validated", [False, True])
def test_a_forecast_has_its_accuracy_and_slurms_estimate_and_no_start_in_the_past(
    opened: Callable[..., Tab], is_validated: bool
):
    """Slurm's estimate comes first if the forecast was not validated."""
    world = small()
    at_s = world.as_of_s
    accuracy = ["right so far: 0 of 3 forecasts", "treat this forecast as a guess"]
    judged = {"kinds": 1, "within_2x": 0.5, "within_3x": 0.7} if is_validated else None
    wait = {"at_s": at_s - 300, "lower_s": 1, "median_s": 60, "upper_s": 3600, "judged": judged}
    world.me |= {
        "operator": False,
        "user": "zoe",
        "waits": [{"job_id": 301, "id": "301", "why": None, "accuracy": accuracy, "forecast": wait}],
    }
    world.jobs[301] = job_on(
        301, [], user="zoe", state="PENDING", reason="Priority", start_s=at_s + 1200, submit_s=at_s - 60
    )
    tab = opened(world).ready()
    tab.page.locator("#mine li").first.wait_for()
    mine = tab.page.inner_text("#mine")
    assert "Forecast: probably between now and " in mine
    assert "Right so far: 0 of 3 forecasts; treat this forecast as a guess." in mine
    assert (mine.index("Slurm's estimated start: ") < mine.index("Forecast")) is not is_validated


def test_without_a_forecast_a_user_gets_slurms_estimate_and_no_command_for_operators(
    opened: Callable[..., Tab],
):
    world = small()
    why = "run `slurm-gpu forecast train`"
    world.me |= {
        "operator": False,
        "user": "zoe",
        "waits": [{"job_id": 301, "id": "301", "why": why, "accuracy": [], "forecast": None}],
    }
    start_s = world.as_of_s + 1200
    world.jobs[301] = job_on(301, [], user="zoe", state="PENDING", reason="Priority", start_s=start_s)
    tab = opened(world).ready()
    tab.page.locator("#mine li").first.wait_for()
    mine = tab.page.inner_text("#mine")
    assert "Slurm's estimated start: " in mine
    assert "forecast" not in mine.lower()
    world.me["operator"] = True
    other = opened(world, "?view=mine").ready()
    other.page.locator("#mine code", has_text="slurm-gpu forecast train").wait_for()


def test_amounts_compared_with_limits_are_not_rounded(opened: Callable[..., Tab]):
    world = small()
    limit = {
        "rule": "share",
        "per": "user",
        "on": "GPUs running + pending",
        "key": "gpus_total",
        "unit": "GPUs",
    }
    line = {"limit": 6, "used": 2.25, "left": 3.75, "mode": "enforce", "why": "", "group": "all"}
    world.me |= {"operator": False, "user": "zoe", "limits": [limit | line]}
    tab = opened(world).ready()
    tab.page.locator("#limits li").first.wait_for()
    assert "2.25 of 6 GPUs" in tab.page.inner_text("#limits").replace("\u00a0", " ")


def test_all_pages_show_times_in_the_named_zone_of_the_site(opened: Callable[..., Tab]):
    world = small()
    world.timezone = "Asia/Seoul"
    world.jobs[301] = job_on(301, [], user="zoe", state="PENDING", reason="Priority", start_s=world.as_of_s)
    world.queued["301"] = queued_job(id="301", submit_s=1_794_999_600)  # 11:00 UTC
    tab = opened(world, timezone_id="America/New_York").ready()
    assert "Times are in the Asia/Seoul time zone." in tab.page.inner_text("footer")
    job = opened(world, "job?id=301", timezone_id="America/New_York")
    job.page.locator("#wait:visible").wait_for()
    assert "Times are in the Asia/Seoul time zone." in job.page.inner_text("footer")
    assert re.search(r"Submitted\s+(\w+ )?20:00", job.page.inner_text("#facts"))


def test_an_array_that_waits_leads_to_its_page(opened: Callable[..., Tab]):
    world = small()
    world.me |= {"operator": False, "user": "zoe"}
    for job_id, known_as in ((301, "301_2-9%3"), (305, "305_7")):
        world.jobs[job_id] = job_on(job_id, [], user="zoe", state="PENDING", reason="Priority")
        world.jobs[job_id]["id"] = known_as
    tab = opened(world).ready()
    links = tab.page.locator("#mine a")
    links.first.wait_for()
    assert {link.inner_text(): link.get_attribute("href") for link in links.all()} == {
        "301_2-9%3": "job?id=301",
        "305_7": "job?id=305_7",
    }


def test_unknown_limits_are_shown_as_unknown(opened: Callable[..., Tab]):
    world = small()
    world.me |= {"operator": False, "limits": None, "limits_why": "slurm-gpuctld is silent <b>"}
    tab = opened(world).ready()
    tab.page.locator("#limits", has_text="Your limits are unknown: slurm-gpuctld is silent <b>.").wait_for()


def test_only_users_signed_in_by_a_link_have_a_sign_out_button(opened: Callable[..., Tab]):
    tab = opened(small()).ready()
    tab.page.click("#signout")
    tab.page.wait_for_url("**/signin")
    assert tab.served.signed_out == ["1"]
    world = small()
    world.me["signed_in"] = "proxy"
    other = opened(world).ready()
    assert other.page.locator("#signout").is_hidden()


def test_free_gpus_are_counted_by_type_and_the_queue_by_reason(opened: Callable[..., Tab]):
    world = small()
    world.jobs = {key: job for key, job in world.jobs.items() if job["state"] != "PENDING"}
    for number in range(3):
        world.jobs[500 + number] = job_on(
            500 + number, [], state="PENDING", reason="Priority", n_gpus=4, submit_s=world.as_of_s - 60
        )
    tab = opened(world).ready()
    free = world.free()["types"][0]
    assert f"{free['free']} of 64 h100 free" in tab.page.inner_text("#free")
    bar = tab.page.locator("#free .bar i").first.evaluate("(part) => parseFloat(part.style.width)")
    assert bar == pytest.approx(100 * free["free"] / 64, abs=0.01)
    queue = tab.page.inner_text("#queue")
    assert "3 jobs wait for 12 GPUs." in queue
    assert "others come first" in queue
    assert "dave · 256 × h100" in tab.page.inner_text("#reservations")


def test_on_a_narrow_screen_all_cards_are_as_wide(opened: Callable[..., Tab]):
    tab = opened(small(), viewport={"width": 390, "height": 900}).ready()
    cards = [card.bounding_box() for card in tab.page.locator("#map, .panels section:visible").all()]
    assert len(cards) > 2
    assert len({(card["x"], card["width"]) for card in cards}) == 1


def test_reservations_lie_in_the_calendar_where_their_time_is(opened: Callable[..., Tab]):
    """Test that the calendar begins with the current day of the viewer's clock."""
    world = small()
    midnight_s, hour_s = world.as_of_s // 86400 * 86400, 3600
    spans = {"carol": (24, 48), "dave": (36, 48)}
    world.reservations = [
        {
            "user": user,
            "gpus": 8,
            "gpu_type": "h100",
            "nodes": None,
            "error": None,
            "state": "approved",
            "start_s": midnight_s + first * hour_s,
            "end_s": midnight_s + last * hour_s,
        }
        for user, (first, last) in spans.items()
    ]
    tab = opened(world, timezone_id="UTC").ready()
    track = tab.page.locator("#reservations .track").first.bounding_box()
    for piece, (first, last) in zip(
        tab.page.locator("#reservations .track i").all(), spans.values(), strict=True
    ):
        box = piece.bounding_box()
        assert (box["x"] - track["x"]) / track["width"] == pytest.approx(first / 48, abs=0.01)
        assert box["width"] / track["width"] == pytest.approx((last - first) / 48, abs=0.01)


def test_an_operator_goes_from_all_jobs_to_their_own_and_back(opened: Callable[..., Tab]):
    world = small()
    for job in world.jobs.values():
        job["user"] = "bob"
    world.jobs[200]["user"] = "alice"
    tab = opened(world).ready()
    assert tab.page.locator("#attention").is_visible()
    tab.drawn_after(lambda: tab.page.get_by_role("button", name="My jobs").click())
    lit = "return [...start.squares.lit.keys()].filter((square) => start.squares.lit[square]);"
    assert tab.ask(lit) == [12, 13]
    assert tab.page.locator("#attention").is_hidden()
    assert tab.page.locator("#mine").is_visible()
    assert tab.page.evaluate("location.search") == "?view=mine"
    tab.drawn_after(lambda: tab.page.get_by_role("button", name="All jobs").click())
    assert tab.ask("return start.squares.lit;") is None


def test_one_click_leads_from_what_needs_attention_to_its_job(opened: Callable[..., Tab]):
    world = small()
    world.alerts = [
        {
            "job_id": 200,
            "id": "200",
            "user": "alice",
            "alert": "never_used",
            "squares": [[12, 13]],
            "since_s": world.as_of_s - 600,
            "coverage": 1.0,
        },
    ]
    tab = opened(world, "?view=all").ready()
    tab.page.locator("#attention").get_by_role("link", name="200").click()
    tab.page.wait_for_url("**/job?id=200")


def test_the_time_until_gpus_become_free_is_a_metric(opened: Callable[..., Tab]):
    world = small()
    world.jobs[200]["end_s"] = world.as_of_s + 3 * 3600
    world.jobs[105]["end_s"] = world.as_of_s + 600
    tab = opened(world).ready()
    tab.drawn_after(lambda: tab.page.select_option("#metric", "frees"))
    octets = tab.ask("return [start.squares.octets[0], start.squares.octets[104 - 100]];")
    assert octets == [0, GAP], "free is free now; without a time limit it is unknown"
    assert [tab.ask(f"return start.squares.numbers({square});") for square in (5, 12)] == ["10m", "3h"]
    legend = tab.page.inner_text("#legend").replace("\u00a0", " ").split("\n")
    assert legend[:4] == ["0 s", "1 h", "1 d", "30 d or more"]
    assert tab.page.evaluate("location.search") == "?metric=frees"


def test_the_legend_explains_the_squares(opened: Callable[..., Tab]):
    world = small()
    tab = opened(world).ready()

    def below(percent: int) -> int:
        pairs = zip(world.frames["state"], world.frames["util"], strict=True)
        return sum(state in (ALLOCATED, SHARED) and octet < percent for state, octet in pairs)

    def legend() -> str:
        return str(tab.page.inner_text("#legend")).replace("\u00a0", " ").replace("\n", " ")

    for words in ("0 %", "100 %", "free", "not measured", "out of service", "of one job"):
        assert words in legend()
    assert legend().endswith(f"allocated, under 10 %: {below(10)}")
    tab.drawn_after(lambda: tab.page.fill("#limit", "60"))
    assert legend().endswith(f"allocated, under 60 %: {below(60)}")
    assert below(10) < below(60)
    tab.drawn_after(lambda: tab.page.select_option("#metric", "state"))
    assert "allocated allocated in shards free" in legend()
    tab.drawn_after(lambda: tab.page.select_option("#metric", "jobs"))
    assert legend() == "jobs next to each other free without a job out of service"


def test_an_empty_cluster_has_a_message(opened: Callable[..., Tab]):
    world: Any = small()
    world.layout |= {"zones": []}
    world.frames = {name: bytearray() for name in world.frames}
    world.jobs, world.alerts = {}, []
    tab = opened(world)
    message = tab.page.locator("#empty", has_text="no GPUs")
    message.wait_for()
    box = message.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    assert tab.page.evaluate(f"document.elementFromPoint({x}, {y}).id") == "empty", "nothing lies on it"
    assert tab.page.locator("#controls").is_hidden(), "there is nothing to choose"
    assert tab.said == []
