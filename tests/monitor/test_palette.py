"""Colours are defined once; the canvas, the style sheet and the picture without scripts use the same ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise

import pytest

from slurm_gpu.monitor import palette
from slurm_gpu.monitor.cluster.layout import SquareLayout
from slurm_gpu.monitor.cluster.metrics import GAP, OUT_OF_SERVICE, STATE
from slurm_gpu.monitor.cluster.squares_svg import draw, plan
from slurm_gpu.monitor.page.files import module, page_files
from tests.monitor.page.test_files import SCRIPTS
from tests.monitor.small_cluster import Here

_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


_Colour = tuple[float, float, float]
Sight = Callable[[_Colour], _Colour]


def linear_rgb(text: str) -> _Colour:
    """Return the linear components of a colour such as "#14804a"."""
    red, green, blue = (palette._linear(int(text[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return red, green, blue


def deuteranopia(colour: _Colour) -> _Colour:
    """Simulate sight without green cones (Machado, Oliveira and Fernandes 2009, severity 1)."""
    rows = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
    red, green, blue = (sum(a * b for a, b in zip(row, colour, strict=True)) for row in rows)
    return red, green, blue


def lightness(colour: _Colour) -> float:
    """Return L* (0 to 100) of CIELAB."""
    y = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), colour, strict=True))
    return float(116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y)


@pytest.fixture(scope="module")
def layout() -> SquareLayout:
    return Here().poll().layout


def drawn(layout: SquareLayout, metric: str, octet: int, state: int = 1) -> set[str]:
    """Return the different ways in which squares with a given octet and state are drawn."""
    n = layout.n_squares
    svg = draw(layout, plan(layout), layout.metrics[metric], bytes([octet]) * n, bytes([state]) * n, "t")
    return set(re.findall(r"<path (.*?) d=", svg))


def test_no_other_module_and_no_style_sheet_has_a_colour_of_its_own():
    for name in set(SCRIPTS) - {"palette"}:
        assert not _COLOUR.findall(module(name)), name
    assert not _COLOUR.findall(files("slurm_gpu.monitor.page").joinpath("monitor.css").read_text())
    picture = files("slurm_gpu.monitor").joinpath("cluster", "squares_svg.py").read_text()
    assert not _COLOUR.findall(picture)


def test_every_colour_that_the_style_sheet_and_the_scripts_name_is_there_on_both_grounds():
    (style,) = (file.body.decode() for path, file in page_files().items() if path.endswith("monitor.css"))
    named = set(re.findall(r"var\(--([\w-]+)\)", style))
    for name in SCRIPTS:
        named |= set(re.findall(r'"--([\w-]+)"', module(name)))
    assert named - {"tone"} <= palette.INKS["light"].keys() == palette.INKS["dark"].keys()


@pytest.mark.parametrize("ground", palette.GROUNDS)
def test_the_scale_goes_through_its_anchors_and_only_one_way_in_lightness(ground: str):
    anchors = palette.SEQUENTIAL[ground]
    for place, anchor in enumerate(anchors):
        assert palette.sequential(place / (len(anchors) - 1), ground) == anchor
    shades = [palette.sequential(share / 50, ground) for share in range(51)]
    lightness = [palette._to_lab(shade)[0] for shade in shades]
    steps = [later - earlier for earlier, later in pairwise(lightness)]
    assert all(step < 0 for step in steps) or all(step > 0 for step in steps)
    assert palette.sequential(-1, ground) == anchors[0]
    assert palette.sequential(2, ground) == anchors[-1]


@pytest.mark.parametrize("ground", palette.GROUNDS)
@pytest.mark.parametrize("sees", [tuple, deuteranopia], ids=["all colours", "deuteranopia"])
def test_small_squares_of_the_user_and_of_others_and_free_ones_differ(ground: str, sees: Sight) -> None:
    """Differences of 15 in CIE L* are visible in squares of a few pixels, whatever their value."""
    inks = palette.INKS[ground]
    others, vacant = (lightness(sees(linear_rgb(inks[name]))) for name in ("others", "vacant"))
    shares = [palette.OWN_FROM + (1 - palette.OWN_FROM) * step / 20 for step in range(21)]
    own = [lightness(sees(linear_rgb(palette.sequential(share, ground)))) for share in shares]
    assert abs(others - vacant) >= 15
    assert min(abs(each - other) for each in own for other in (others, vacant)) >= 15


def test_the_scripts_get_what_the_picture_has():
    constants = dict(re.findall(r"export const (\w+) = (.*);", module("palette")))
    values = {name: json.loads(value) for name, value in constants.items()}
    assert {name: value if name == "OWN_FROM" else value["light"] for name, value in values.items()} == {
        "SEQUENTIAL": list(palette.SEQUENTIAL["light"]),
        "OWN_FROM": palette.OWN_FROM,
        "KINDS": list(palette.KINDS["light"]),
        "STATES": list(palette.STATES["light"]),
        "LETTERS": palette.LETTERS["light"],
    }


def test_the_picture_draws_as_the_canvas_does(layout: SquareLayout):
    scale, inks = palette.SEQUENTIAL["light"], palette.INKS["light"]
    assert drawn(layout, "util", 0) == {f'fill="{scale[0]}"'}
    assert drawn(layout, "util", 100) == {f'fill="{scale[-1]}"'}
    assert drawn(layout, "util", GAP) == {f'fill="none" stroke="{inks["hollow"]}"'}
    assert drawn(layout, "util", GAP, OUT_OF_SERVICE) == {'fill="url(#out)"'}
    for octet, colour in enumerate(palette.STATES["light"], 1):
        assert drawn(layout, STATE.name, octet, octet) == {f'fill="{colour}"'}
    for metric, octet in ((STATE.name, 0), ("util", 0), ("util", GAP)):
        assert drawn(layout, metric, octet, 0) == {f'fill="none" stroke="{inks["good"]}" stroke-width="1.5"'}
