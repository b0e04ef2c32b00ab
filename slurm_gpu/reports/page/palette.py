"""Define the colours of a report by meaning, for light and for dark backgrounds."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping

N_SERIES = 10
N_NODE_CLASSES = 6

_LIGHT_SERIES = (
    "#0077bb",
    "#ee7733",
    "#009988",
    "#cc3311",
    "#aa4499",
    "#c99a1e",
    "#33a5d6",
    "#7a5195",
    "#7f9c1b",
    "#6b7580",
)
_DARK_SERIES = (
    "#4aa8e0",
    "#f59a5f",
    "#3cc4b0",
    "#f0705a",
    "#d07fc0",
    "#e8c15a",
    "#7fd4f5",
    "#b18fd0",
    "#b3cf5a",
    "#98a3ae",
)
# Colours of node classes: muted for the many runs on one node, strong for the few runs on many nodes.
_LIGHT_NODES = ("#86a3b8", "#1a80a6", "#2a9d5c", "#d99a00", "#e2631b", "#b3123f")
_DARK_NODES = ("#56748b", "#3fb4de", "#4fd08a", "#f2c94c", "#ff8a4c", "#ff5c8a")

LIGHT: Mapping[str, str] = {
    "page": "#f4f6f8",
    "surface": "#ffffff",
    "ink": "#1b2631",
    "muted": "#566472",
    "grid": "#dde3e9",
    "accent": "#0a6c8e",
    "other": "#a9b3bd",
    "limit": "#7b8794",
    "free": "#dde3e9",
    "lines-aside": "#c3ccd5",
    **{f"s{i}": colour for i, colour in enumerate(_LIGHT_SERIES)},
    **{f"node-{i}": colour for i, colour in enumerate(_LIGHT_NODES)},
}
DARK: Mapping[str, str] = {
    "page": "#10161c",
    "surface": "#182028",
    "ink": "#e6ebf0",
    "muted": "#9fabb7",
    "grid": "#2e3943",
    "accent": "#52b9dc",
    "other": "#66727e",
    "limit": "#7f8b97",
    "free": "#2e3943",
    "lines-aside": "#3b4751",
    **{f"s{i}": colour for i, colour in enumerate(_DARK_SERIES)},
    **{f"node-{i}": colour for i, colour in enumerate(_DARK_NODES)},
}


def series_tone(place: int) -> str:
    """Return the colour of a series; more than ten series reuse colours."""
    return f"s{place % N_SERIES}"


def tones_of(series: Iterable[str], unused: Collection[str] = ()) -> dict[str, str]:
    """Return the tone of each series; unused capacity is quieter than everything that is used."""
    quiet = dict(zip(unused, itertools.cycle(("free", "other")), strict=False))
    used = (name for name in series if name not in quiet)
    return {name: series_tone(place) for place, name in enumerate(used)} | quiet


def variables(colours: Mapping[str, str]) -> str:
    """Return CSS custom properties of these colours."""
    return "".join(f"--{tone}:{colour};" for tone, colour in colours.items())


def tone_rules(colours: Mapping[str, str] | None = None) -> str:
    """Return CSS rules for the colours of marks, as variables of the page or as the colours themselves."""
    rules = []
    for tone in LIGHT:
        colour = f"var(--{tone})" if colours is None else colours[tone]
        rules.append(f".f-{tone}{{fill:{colour}}}.l-{tone}{{stroke:{colour};fill:none}}")
    return "".join(rules)
