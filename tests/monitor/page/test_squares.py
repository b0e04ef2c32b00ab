"""Test the squares of GPUs in a real browser: their appearance and their selection."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slurm_gpu.monitor import palette
from tests.monitor.page.conftest import Tab
from tests.monitor.page.contract_server import pretended
from tests.monitor.page.example_clusters import ALLOCATED, GAP, OUT, UNWATCHED, World, make_world

_FREE_ZERO, _HELD_ZERO, _HELD_GAP, _OUT, _BELOW, _ABOVE, _AT = range(7)
_FREE_GAP = 10


def small(**options: Any) -> World:
    """Return two racks of four nodes with eight GPUs each; the first squares are of different kinds."""
    world = make_world(**({"n_nodes": 8, "n_zones": 1, "n_racks": 2} | options))
    state, util = world.frames["state"], world.frames["util"]
    for key, job in list(world.jobs.items()):
        if job["squares"] and job["squares"][0][0] < 16:
            del world.jobs[key]
    world.alerts = [alert for alert in world.alerts if alert["job_id"] in world.jobs]
    for square in range(16):
        state[square], util[square] = 0, 0
    for square, octet in ((_HELD_ZERO, 0), (_HELD_GAP, GAP), (_BELOW, 9), (_ABOVE, 80), (_AT, 10)):
        state[square], util[square] = ALLOCATED, octet
        world.jobs[100 + square] = job_on(100 + square, [[square, square]])
    state[_OUT], util[_OUT] = OUT, GAP
    state[9], util[9], util[_FREE_GAP] = UNWATCHED, GAP, GAP
    for square in (12, 13):
        state[square], util[square] = ALLOCATED, 50
    world.jobs[200] = job_on(200, [[12, 13]])
    return world


def job_on(job_id: int, squares: list[list[int]], **more: Any) -> dict[str, Any]:
    n = sum(last - first + 1 for first, last in squares)
    return {
        "id": str(job_id),
        "job_id": job_id,
        "full": True,
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "state": "RUNNING",
        "reason": "",
        "n_gpus": n,
        "n_nodes": 1,
        "n_tasks": 1,
        "submit_s": 1,
        "start_s": 1,
        "end_s": None,
        "name": f"run{job_id}",
        "squares": squares,
        "shared_squares": [],
    } | more


@pytest.fixture(scope="module")
def kept(browser: Any) -> Iterator[Tab]:
    with pretended(small()) as served:
        tab = Tab(browser, served)
        yield tab.ready()
        tab.context.close()


@pytest.fixture
def tab(kept: Tab) -> Tab:
    """Share one tab between all tests that neither leave the page nor change the world."""
    return kept.unmark()


def test_each_gpu_has_one_square_and_squares_do_not_overlap(tab: Tab):
    places = tab.ask("const { x, y, n, pitch } = start.squares.places; return [[...x], [...y], n, pitch];")
    xs, ys, n, pitch = places
    assert n == 64
    corners = set(zip(xs, ys, strict=True))
    assert len(corners) == n
    for x, y in corners:
        assert not any((x + dx, y + dy) in corners for dx in range(pitch) for dy in range(1, pitch))
    assert tab.said == []


def test_a_gap_and_a_measured_zero_appear_different(tab: Tab):
    surface = tab.ask("return start.squares.inks.surface;")
    gap, zero = tab.middle(_HELD_GAP), tab.middle(_HELD_ZERO)
    assert gap == [surface & 255, surface >> 8 & 255, surface >> 16 & 255]
    assert sum(abs(a - b) for a, b in zip(gap, zero, strict=True)) > 60
    assert tab.focus(_HELD_GAP).count("not measured") == 1
    assert "Utilisation 0\u00a0%" in tab.focus(_HELD_ZERO)


def test_a_square_out_of_service_is_hatched(tab: Tab):
    assert len({tuple(pixel) for pixel in tab.pixels(_OUT)}) == 2
    assert "out of service" in tab.focus(_OUT).lower()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("metric", ["util", "state", "jobs"])
def test_free_squares_appear_as_in_the_legend_for_a_user_with_jobs(
    opened: Callable[..., Tab], scheme: str, metric: str
):
    """Test that other users' GPUs are as bright as the viewer's own, and show only whether they are free."""
    world = small()
    world.me |= {"operator": False, "user": "alice"}
    tab = opened(world, f"?metric={metric}", color_scheme=scheme).ready()
    tab.page.locator("#mine li").first.wait_for()
    legend = tab.ask(
        "const items = [...document.getElementById('legend').children];"
        "const free = items.find((item) => item.textContent === 'free').firstChild;"
        "return [...free.getContext('2d').getImageData(1, 1, 1, 1).data.slice(0, 3)];"
    )
    ink, surface = (
        [colour & 255, colour >> 8 & 255, colour >> 16 & 255]
        for colour in tab.ask("const { ink, surface } = start.squares.inks; return [ink, surface];")
    )
    for square in (_FREE_ZERO, _FREE_GAP):
        pixels = tab.pixels(square)
        assert pixels[0] == legend != surface
        assert tab.middle(square) == surface
        assert ink in pixels, "the word is written in the ink of the page"
    assert tab.pixels(_HELD_GAP)[0] != legend


def test_a_free_gpu_that_is_used_shows_its_value(opened: Callable[..., Tab]):
    world = small()
    world.frames["util"][_FREE_ZERO] = 80
    tab = opened(world).ready()
    assert tab.middle(_FREE_ZERO) == tab.middle(_ABOVE)


def _ringed(tab: Tab) -> set[int]:
    """Return the squares whose whole edge has the colour of the ring."""
    return set(
        tab.ask(
            """const s = start.squares, side = s.zoom.pitch - s.places.line, found = [];
            const context = s.base.getContext('2d');
            for (let square = 0; square < 16; square++) {
              const { data } = context.getImageData(...s.corner(square), side, side);
              const pixels = new Uint32Array(data.buffer), last = side * (side - 1);
              const edge = [...pixels.slice(0, side), ...pixels.slice(last)];
              for (let at = 0; at < last; at += side) edge.push(pixels[at], pixels[at + side - 1]);
              if (edge.every((pixel) => pixel === s.inks.clear.ring)) found.push(square);
            }
            return found;"""
        )
    )


def test_only_allocated_squares_under_the_threshold_have_a_ring(tab: Tab):
    """Test that no threshold selects a gap or a GPU without a job."""
    assert _ringed(tab) == {_HELD_ZERO, _BELOW}
    tab.drawn_after(lambda: tab.page.fill("#limit", "60"))
    assert _ringed(tab) == {_HELD_ZERO, _BELOW, _AT, 12, 13}
    tab.drawn_after(lambda: tab.page.fill("#limit", ""))
    assert _ringed(tab) == set()


def test_squares_over_a_threshold_can_have_the_ring_instead(tab: Tab, opened: Callable[..., Tab]):
    tab.drawn_after(lambda: tab.page.fill("#limit", "60"))
    under = _ringed(tab)
    tab.drawn_after(lambda: tab.page.select_option("#side", "over"))
    over = _ringed(tab)
    assert over
    assert not over & under
    assert tab.page.evaluate("location.search") == "?over=60"
    assert "allocated, over 60\u00a0%:" in tab.page.inner_text("#legend")
    again = opened(small(), "?over=60").ready()
    assert _ringed(again) == over
    assert again.page.input_value("#side") == "over"


def test_threshold_metric_and_search_are_in_the_url(tab: Tab, opened: Callable[..., Tab]):
    tab.drawn_after(lambda: tab.page.fill("#limit", "60"))
    tab.drawn_after(lambda: tab.page.fill("#find", "200"))
    query = tab.page.evaluate("location.search")
    assert query == "?under=60&find=200"
    again = opened(small(), query).ready()
    assert again.page.input_value("#limit") == "60"
    assert _ringed(again) == _ringed(tab)
    assert again.page.inner_text("#found") == "2 GPUs: 1 job"


def test_squares_of_one_job_are_joined_and_others_are_not(tab: Tab):
    def between(left: int) -> list[int]:
        x, y, side = tab.corner(left)
        return list(
            tab.ask(
                "const context = start.squares.base.getContext('2d');"
                f"return [...context.getImageData({x + side}, {y + side / 2}, 1, 1).data.slice(0, 3)];"
            )
        )

    surface = between(14)
    assert between(12) != surface
    assert between(13) == surface == between(_BELOW)


def test_a_job_of_four_squares_has_no_hole_in_its_middle(opened: Callable[..., Tab]):
    world = small()
    for square in (0, 1, 4, 5):
        world.frames["state"][square] = ALLOCATED
        world.jobs.pop(100 + square, None)
    world.jobs[201] = job_on(201, [[0, 1], [4, 5]])
    tab = opened(world).ready()
    hole = tab.ask(
        "const s = start.squares, [x, y] = s.corner(5), line = s.places.line;"
        "const { data } = s.base.getContext('2d').getImageData(x - line, y - line, line, line);"
        "return [...new Uint32Array(data.buffer)].every((pixel) => pixel === s.inks.clear.plate);"
    )
    assert hole


def test_highlighted_squares_have_one_common_outline(tab: Tab):
    """Test the outline, even at the edge of the picture; there is none between two highlighted squares."""
    tab.drawn_after(lambda: tab.page.fill("#find", "n8"))

    def drawn(at: str) -> bool:
        return bool(
            tab.ask(
                "const s = start.squares, side = s.zoom.pitch - s.places.line, half = side >> 1;"
                f"const [x, y] = {at};"
                "return [...s.over.getContext('2d').getImageData(x, y, 1, 1).data].some(Boolean);"
            )
        )

    last, first = "s.corner(63)", "s.corner(56)"
    assert drawn(f"[{first}[0] - 1, {first}[1] + half]")
    assert drawn(f"[{last}[0] + half, Math.min({last}[1] + side, s.over.height - 1)]")
    assert not drawn(f"[{first}[0] + side, {first}[1] + half]")


def test_the_pointer_reports_the_square_below_it(tab: Tab):
    x, y, side = tab.corner(12)
    box = tab.page.locator("#over").bounding_box()
    tab.page.mouse.move(box["x"] + x + side / 2, box["y"] + y + side / 2)
    tip = tab.page.locator("#tip")
    tip.wait_for()
    assert "n5 GPU 4" not in tip.inner_text()
    for words in ("GPU 4", "Utilisation: 50\u00a0%", "job 200 of alice, 2 GPUs", "has no time limit"):
        assert words in tip.inner_text()
    tab.page.mouse.move(box["x"] + x + side / 2, box["y"] - 30)
    tip.wait_for(state="hidden")


def test_each_square_is_found_at_its_place(tab: Tab):
    """Test that the square at a position, computed without a search, is correct even after zooming."""
    hit = """
      const s = start.squares, box = s.over.getBoundingClientRect(), wrong = [];
      const middle = (s.zoom.pitch - s.places.line) / 2;
      for (let square = 0; square < s.places.n; square++) {
        const [x, y] = s.corner(square);
        const event = { clientX: box.left + (x + middle) / s.unit, clientY: box.top + (y + middle) / s.unit };
        if (s.at(event) !== square) wrong.push(square);
      }
      return wrong;"""
    assert tab.ask(hit) == []
    tab.drawn_after(lambda: tab.page.get_by_role("button", name="Zoom in").click())
    assert tab.ask(hit) == []


def test_zones_contain_racks_and_racks_contain_nodes(opened: Callable[..., Tab]):
    """Test that the boxes of zones and racks do not overlap at any width."""
    tab = opened(make_world(n_nodes=24, n_zones=3, n_racks=2)).ready()
    boxes = """
      const { places, cluster: { flat } } = start.squares, side = places.pitch - places.line;
      const around = (nodes) => {
        const some = nodes.flatMap(({ first, n }) => Array.from({ length: n }, (_, k) => first + k));
        const x = some.map((square) => places.x[square]), y = some.map((square) => places.y[square]);
        return [Math.min(...x), Math.min(...y), Math.max(...x) + side, Math.max(...y) + side];
      };
      return [
        flat.zones.map((zone) => around(zone.racks.flatMap((rack) => rack.members))),
        flat.zones.flatMap((zone) => zone.racks.map((rack) => around(rack.members))),
        flat.nodes.map((node) => around([node])),
      ];"""
    for width in (1280, 390):
        tab.drawn_after(lambda width=width: tab.page.set_viewport_size({"width": width, "height": 800}))
        zones, racks, nodes = tab.ask(boxes)
        assert [len(zones), len(racks), len(nodes)] == [3, 6, 24]
        for level in (zones, racks, nodes):
            for one, other in itertools.combinations(level, 2):
                apart = one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
                assert apart


def test_a_click_describes_a_square_and_a_double_click_opens_its_job(opened: Callable[..., Tab]):
    tab = opened(small()).ready()
    x, y, side = tab.corner(12)
    box = tab.page.locator("#over").bounding_box()
    middle = box["x"] + x + side / 2, box["y"] + y + side / 2
    tab.page.mouse.click(*middle)
    assert "Job 200 of alice" in tab.page.inner_text("#focused")
    assert tab.page.locator("#focused").get_by_role("link", name="Open job 200").is_visible()
    tab.page.mouse.dblclick(*middle)
    tab.page.wait_for_url("**/job?id=200")


def test_the_wheel_with_ctrl_and_keys_zoom_and_the_point_stays(tab: Tab):
    x, y, side = tab.corner(20)
    box = tab.page.locator("#over").bounding_box()
    tab.page.mouse.move(box["x"] + x + side / 2, box["y"] + y + side / 2)
    tab.page.keyboard.down("Control")
    tab.drawn_after(lambda: tab.page.mouse.wheel(0, -100))
    tab.page.keyboard.up("Control")
    closer_x, closer_y, closer_side = tab.corner(20)
    assert closer_side > side
    assert closer_x < x + side / 2 < closer_x + closer_side
    assert closer_y < y + side / 2 < closer_y + closer_side
    tab.page.focus("#frame")
    for key, wanted in (("0", side), ("+", closer_side), ("-", side)):
        tab.drawn_after(lambda key=key: tab.page.keyboard.press(key))
        assert tab.corner(20)[2] == wanted


def test_a_threshold_on_p25_is_in_the_address(opened: Callable[..., Tab]):
    """Test that percentiles cover a job's whole run so far, not only the last sample."""
    world = small()
    world.frames["p25_util"][:] = bytes([GAP]) * world.n
    for square, p25 in ((12, 70), (13, 20), (_ABOVE, 100)):
        world.frames["p25_util"][square] = p25
    tab = opened(world, "?metric=p25_util&under=50").ready()
    assert tab.page.input_value("#metric") == "p25_util"
    assert _ringed(tab) == {13}


def test_arrow_keys_move_the_focus_and_announce_it(tab: Tab):
    tab.page.focus("#frame")
    press = tab.page.keyboard.press
    press("ArrowRight")
    assert tab.page.inner_text("#focused").startswith("n1 GPU 0")
    press("ArrowRight")
    assert tab.page.inner_text("#focused").startswith("n1 GPU 1")
    press("ArrowDown")
    assert tab.page.inner_text("#focused").startswith("n1 GPU 5")
    press("PageDown")
    assert tab.page.inner_text("#focused").startswith("n2 GPU 0")
    press("End")
    assert tab.page.inner_text("#focused").startswith("n8 GPU 7")
    assert tab.page.get_attribute("#focused", "aria-live") == "polite"
    press("Escape")
    assert tab.page.inner_text("#focused") == ""


def test_n_goes_to_the_next_square_with_a_ring(tab: Tab):
    tab.page.focus("#frame")
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("n")
    assert tab.page.inner_text("#focused").startswith(f"n1 GPU {_HELD_ZERO}")
    tab.page.keyboard.press("n")
    assert tab.page.inner_text("#focused").startswith(f"n1 GPU {_BELOW}")


def test_enter_opens_the_page_of_the_job(opened: Callable[..., Tab]):
    tab = opened(small()).ready()
    tab.focus(12)
    tab.page.focus("#frame")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/job?id=200")


def test_enter_opens_no_page_of_another_users_job(opened: Callable[..., Tab]):
    world = small()
    world.jobs[200] |= {"full": False, "name": None, "user": "bob"}
    tab = opened(world).ready()
    assert "Job 200 of bob" in tab.focus(12)
    tab.page.focus("#frame")
    tab.page.keyboard.press("Enter")
    assert tab.page.inner_text("#found") == "Only the owner and operators can see that job."
    assert tab.page.locator("#focused a").count() == 0


@pytest.mark.parametrize(
    ("written", "squares", "message"),
    [
        ("200", [12, 13], "2 GPUs: 1 job"),
        ("run200", [12, 13], "2 GPUs: 1 job"),
        ("n2", list(range(8, 16)), "8 GPUs: 1 node"),
        ("n2, 104", [4, *range(8, 16)], "9 GPUs: 1 node, 1 job"),
        ("nobody", [], "nothing found"),
    ],
)
def test_search_results_are_highlighted(tab: Tab, written: str, squares: list[int], message: str):
    faint = _HELD_ZERO
    before = tab.middle(faint)
    tab.drawn_after(lambda: tab.page.fill("#find", written))
    lit = tab.ask("return [...start.squares.lit.keys()].filter((square) => start.squares.lit[square]);")
    assert lit == squares
    assert tab.middle(faint) != before, "a square that is not highlighted is not faint"
    assert tab.page.inner_text("#found") == message
    tab.drawn_after(lambda: tab.page.get_by_role("button", name="Show all").click())
    assert tab.middle(faint) == before
    assert "find" not in tab.page.evaluate("location.search")


def test_the_table_shows_the_same(tab: Tab):
    tab.page.click("#list summary")
    rows = tab.page.locator("#list tbody tr")
    rows.first.wait_for()
    assert rows.count() == 8
    first = rows.first.inner_text()
    assert "n1" in first
    values = dict(enumerate(first.split("\t")[3].split("\u2002")))
    assert (values[_HELD_ZERO], values[_HELD_GAP], values[_ABOVE]) == ("0", "–", "80")
    assert "104 (alice)" in first


def test_a_wide_table_widens_nothing_else(opened: Callable[..., Tab]):
    world = small()
    for job in world.jobs.values():
        job["user"] = "user-with-a-long-name"
    tab = opened(world).ready()
    tab.page.click("#list summary")
    tab.page.locator("#list tbody tr").first.wait_for()
    free = tab.page.locator("#free").bounding_box()
    table = tab.page.locator("#map").bounding_box()
    assert table["x"] + table["width"] < free["x"]
    assert tab.is_within_its_width(1280, 390)


def test_the_squares_fit_the_width_and_are_zoomed_and_moved(tab: Tab):
    for width in (1280, 768, 390):
        tab.drawn_after(lambda width=width: tab.page.set_viewport_size({"width": width, "height": 800}))
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        right = tab.ask(
            "const { places, base } = start.squares;"
            "return Math.max(...places.x) + places.pitch - places.line <= base.width;"
        )
        assert right
    tab.drawn_after(lambda: tab.page.get_by_role("button", name="Zoom in").click())
    assert tab.page.get_by_role("button", name="Whole cluster").is_visible()
    before = tab.corner(0)
    x, y, width, height = tab.page.locator("#over").bounding_box().values()
    tab.page.mouse.move(x + width / 2, y + height / 2)
    tab.page.mouse.down()
    tab.drawn_after(lambda: tab.page.mouse.move(x + width / 2 + 20, y + height / 2 + 10, steps=4))
    tab.page.mouse.up()
    assert tab.corner(0) != before
    tab.drawn_after(lambda: tab.page.get_by_role("button", name="Whole cluster").click())
    assert tab.page.get_by_role("button", name="Whole cluster").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_canvas_has_the_colours_of_the_picture_without_scripts(opened: Callable[..., Tab], scheme: str):
    tab = opened(small(), color_scheme=scheme).ready()
    for square, octet in ((_HELD_ZERO, 0), (_ABOVE, 80), (12, 50)):
        wanted = palette.sequential(octet / 100, scheme)
        there = tab.middle(square)
        assert max(abs(int(wanted[at : at + 2], 16) - there[at // 2]) for at in (1, 3, 5)) <= 1
