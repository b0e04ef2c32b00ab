"""Test the page in print, in greyscale, in dark mode and without scripts, and test its labels."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.monitor.page.conftest import Tab
from tests.monitor.page.example_clusters import FREE, GAP, make_world
from tests.monitor.page.test_squares import small
from tests.monitor.test_palette import deuteranopia, lightness, linear_rgb


def test_on_paper_squares_are_dark_on_light_and_nothing_to_click_is_left(opened: Callable[..., Tab]):
    light = opened(small()).ready()
    dark = opened(small(), color_scheme="dark").ready()
    dark.drawn_after(lambda: dark.page.emulate_media(media="print", color_scheme="dark"))
    assert dark.middle(4) == light.middle(4)
    assert dark.page.locator("#controls").is_hidden()
    assert dark.page.locator("#base").is_visible()


def test_the_scale_is_distinguished_without_red_and_green(opened: Callable[..., Tab]):
    """Test that lightness is monotone with visible steps, and that the smallest value is visible."""
    tab = opened(small()).ready()
    for dark, ground in (("false", "#ffffff"), ("true", "#182028")):
        *light, below = tab.ask(
            f"""const {{ scale }} = start, lightness = (colour) => scale.toLab(colour)[0];
            const shares = Array.from({{ length: 11 }}, (_, k) => k / 10);
            const colours = shares.map((share) => scale.sequential(share, {dark}));
            return [...colours, scale.parse('{ground}')].map(lightness);"""
        )
        steps = [after - before for before, after in itertools.pairwise(light)]
        assert all(step < -0.02 for step in steps) or all(step > 0.02 for step in steps)
        assert abs(light[0] - below) > 0.08


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_squares_of_the_user_of_others_and_free_ones_differ(opened: Callable[..., Tab], scheme: str):
    """Test squares of 2 pixels for a user who may not see the values of others."""
    world = make_world()
    world.me["operator"] = False
    mine, other = list(world.jobs.values())[:2]
    for job in world.jobs.values():
        job["full"] = job is mine
    own = listed(mine)
    world.frames["util"] = bytearray([GAP]) * world.n
    tab = opened(world, color_scheme=scheme, viewport={"width": 700, "height": 400}).ready()
    free = world.frames["state"].index(FREE)
    for util in (0, 40, 100):
        for square in own:
            world.frames["util"][square] = util
        tab.drawn_after(tab.served.change)
        colours = [tab.pixels(square)[0] for square in (free, listed(other)[0], own[0])]
        assert len(tab.pixels(free)) <= 9, "the squares are not small"
        for sees in (tuple, deuteranopia):
            shades = [lightness(sees(linear_rgb("#" + bytes(one).hex()))) for one in colours]
            assert min(abs(a - b) for a, b in itertools.combinations(shades, 2)) >= 15, (util, shades)


def listed(job: dict[str, Any]) -> list[int]:
    return [square for first, last in job["squares"] for square in range(first, last + 1)]


_CONTRAST = """(names) => {
  const style = getComputedStyle(document.documentElement);
  const part = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (name) => {
    const text = style.getPropertyValue(name).trim();
    const parts = [1, 3, 5].map((at) => part(parseInt(text.slice(at, at + 2), 16) / 255));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05;
  };
  const ratio = ([one, other]) => Math.max(light(one) / light(other), light(other) / light(one));
  return names.map(ratio);
}"""
_TEXT = [
    *((ink, ground) for ink in ("--ink", "--muted", "--accent") for ground in ("--page", "--surface")),
    *(("--ink", ground) for ground in ("--warn-ground", "--quiet")),
    *(("--warn", "--page"), ("--surface", "--accent"), ("--surface", "--ink")),
]
_MARKS = ("--hollow", "--hatch", "--plate", "--edge", "--ring", "--line", "--good")
_DRAWN = [(ink, "--surface") for ink in _MARKS]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_contrast_with_their_ground(opened: Callable[..., Tab], scheme: str):
    """WCAG 2.2 level AA requires 4.5 to 1 for text (1.4.3), and 3 to 1 for marks and controls (1.4.11)."""
    tab = opened(small(), color_scheme=scheme).ready()
    text = dict(zip(_TEXT, tab.page.evaluate(_CONTRAST, _TEXT), strict=True))
    drawn = dict(zip(_DRAWN, tab.page.evaluate(_CONTRAST, _DRAWN), strict=True))
    assert {pair: ratio for pair, ratio in text.items() if ratio < 4.5} == {}
    assert {pair: ratio for pair, ratio in drawn.items() if ratio < 3} == {}


def test_without_javascript_there_is_a_still_picture(opened: Callable[..., Tab]):
    tab = opened(small(), java_script_enabled=False)
    assert tab.page.locator("noscript img").is_visible()
    for idle in ("#controls", "#frame", "#list", "#queue", "#tally"):
        assert tab.page.locator(idle).is_hidden(), "an element that only scripts fill is visible"


def test_it_is_dark_where_the_screen_is(opened: Callable[..., Tab]):
    light, dark = (opened(small(), color_scheme=scheme).ready() for scheme in ("light", "dark"))
    ground = "getComputedStyle(document.body).backgroundColor"
    assert light.page.evaluate(ground) != dark.page.evaluate(ground)
    assert light.middle(4) != dark.middle(4)
    dark.drawn_after(lambda: dark.page.emulate_media(color_scheme="light"))
    assert light.middle(4) == dark.middle(4)


def test_every_control_has_a_name_and_every_panel_a_heading(opened: Callable[..., Tab]):
    tab = opened(small()).ready()
    assert tab.nameless_controls() == 0
    assert tab.page.locator("main section h2").count() == tab.page.locator("main section").count()
