"""Define the colours of squares and pages for the canvas, the style sheet and the SVG picture.

Users with red-green colour blindness can also distinguish the colours of a sequential scale. A scale runs
from light to dark on a light background, and from dark to light on a dark one. A few further colours mark
categories. Background colours are shared with reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from slurm_gpu.reports.page import palette as reports

GROUNDS = ("light", "dark")
# Colours from 0 to the top of a metric; the colours between these are interpolated in OKLab.
SEQUENTIAL: Mapping[str, Sequence[str]] = {
    "light": ("#ebe0b4", "#a6cbab", "#53a2a9", "#2a6a94", "#1f2c62"),
    "dark": ("#33427f", "#2d7397", "#3aa396", "#98cf86", "#fbf2a8"),
}
# Where the scale begins for users who see no values of others. Their own squares then differ in lightness by
# 15 L* or more from the squares of others and from free squares, whatever their value is.
OWN_FROM = 0.55
# Indices of series colours of reports, excluding grey and red; red is the colour of rings.
_KINDS = (0, 1, 2, 4, 5, 6, 7, 8)
_SHARED = ("page", "surface", "ink", "muted", "grid", "accent")
_OWN: Mapping[str, Mapping[str, str]] = {
    "light": {
        "plate": "#8391a0",
        "edge": "#4d5b68",
        "hollow": "#8794a1",
        "others": "#b4bec8",
        "vacant": "#d3f0de",
        "hatch": "#84919e",
        "line": "#84919e",
        "ring": "#d0311b",
        "warn": "#8a5300",
        "warn-ground": "#fff4dd",
        "good": "#14804a",
        "quiet": "#eef2f5",
    },
    "dark": {
        "plate": "#66747f",
        "edge": "#a9b6c2",
        "hollow": "#65727e",
        "others": "#5d6872",
        "vacant": "#1c4433",
        "hatch": "#6b7884",
        "line": "#6b7884",
        "ring": "#ff7a5c",
        "warn": "#f2c46b",
        "warn-ground": "#33290f",
        "good": "#4fd08a",
        "quiet": "#202a33",
    },
}
_OF_REPORTS = {"light": reports.LIGHT, "dark": reports.DARK}

# Colours by background and name, as in style sheets.
INKS: Mapping[str, Mapping[str, str]] = {
    ground: {**{name: _OF_REPORTS[ground][name] for name in _SHARED}, **_OWN[ground]} for ground in GROUNDS
}
# Colours of categories, which have no order.
KINDS = {ground: tuple(_OF_REPORTS[ground][f"s{place}"] for place in _KINDS) for ground in GROUNDS}
# Colours of allocated squares and of shared squares.
STATES = {ground: KINDS[ground][:2] for ground in GROUNDS}
# Colours of letters in squares, on any background: dark on pale squares, light on dark squares.
LETTERS = {"dark": INKS["light"]["ink"], "light": INKS["light"]["surface"]}

_Three = tuple[float, float, float]


def style_rules() -> str:
    """Return CSS custom properties for light and dark backgrounds.

    The attribute data-theme of the root element overrides the system's preference. Printed pages use the
    light background.
    """
    light, dark = (reports.variables(INKS[ground]) for ground in GROUNDS)
    return (
        f":root{{{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
    )


def script_module() -> str:
    """Return the module palette.js, which the page's other modules import."""
    values = {
        "SEQUENTIAL": SEQUENTIAL,
        "OWN_FROM": OWN_FROM,
        "KINDS": KINDS,
        "STATES": STATES,
        "LETTERS": LETTERS,
    }
    return "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in values.items())


def sequential(share: float, ground: str = "light") -> str:
    """Return the colour at a position of the scale from 0 to 1, as scale.js does for the canvas."""
    anchors = SEQUENTIAL[ground]
    place = min(1.0, max(0.0, share)) * (len(anchors) - 1)
    below = min(len(anchors) - 2, int(place))
    one, other = _to_lab(anchors[below]), _to_lab(anchors[below + 1])
    part = place - below
    return _from_lab(
        (
            one[0] + (other[0] - one[0]) * part,
            one[1] + (other[1] - one[1]) * part,
            one[2] + (other[2] - one[2]) * part,
        )
    )


def _to_lab(text: str) -> _Three:
    """Convert a colour to OKLab.

    Source: Björn Ottosson, "A perceptual color space for image processing" (2020).
    """
    r, g, b = (_linear(int(text[at : at + 2], 16) / 255) for at in (1, 3, 5))
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.793617785 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.428592205 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.808675766 * short,
    )


def _from_lab(lab: _Three) -> str:
    lightness, a, b = lab
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
    rgb = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short,
    )
    octets = (int(255 * min(1.0, max(0.0, _gamma(value))) + 0.5) for value in rgb)
    return "#" + "".join(f"{octet:02x}" for octet in octets)


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


def _gamma(value: float) -> float:
    return value * 12.92 if value <= 0.0031308 else float(1.055 * value ** (1 / 2.4) - 0.055)
