"""Provide the style and script of diagnosis pages, which are the same for all pages.

This module does not import numpy, so a web server can serve the style and script as files.
"""

from __future__ import annotations

from importlib.resources import files

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.reports.page.palette import DARK, LIGHT, N_SERIES, series_tone, tone_rules, variables

VIEWS = ("measured", "peers")
GROUP_TONES = (0, 2, 6, 8)
# Colours of GPUs drawn as lines; groups have other colours.
NAMED_TONES = (1, 3, 4, 5)
SHADES = 8


def page_style() -> str:
    """Return the style sheet."""
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
    swatches = "".join(f".b-s{tone}{{background:var(--s{tone})}}" for tone in range(N_SERIES))
    made = (tone_rules(), swatches, _shade_rules(), _line_rules(), _choice_rules())
    return f":root{{{variables(LIGHT)}}}{dark}{''.join(made)}\n{_file('diagnosis.css')}"


def page_script() -> str:
    """Return the script, which shows the value under the pointer."""
    return _file("pointing.js")


def _choice_rules() -> str:
    """Return the rules that show the chosen metric and view."""
    rules = []
    for metric in Metric:
        rules += [
            f"#m-{metric}:checked~#v-{view}:checked~.heat .p-{metric}.v-{view}{{display:block}}"
            for view in VIEWS
        ]
    for name in [f"m-{metric}" for metric in Metric] + [f"v-{view}" for view in VIEWS]:
        rules.append(
            f"#{name}:checked~.pills [for={name}]{{background:var(--accent);border-color:var(--accent);"
            "color:var(--surface)}"
        )
        rules.append(
            f"#{name}:focus-visible~.pills [for={name}]{{outline:2px solid var(--ink);outline-offset:2px}}"
        )
    return "".join(rules)


def _line_rules() -> str:
    """Return the rules for lines of groups and of single GPUs."""
    tones = [(f"group-{place}", tone) for place, tone in enumerate(GROUP_TONES)]
    tones += [(f"line-{place}", tone) for place, tone in enumerate(NAMED_TONES)]
    return "".join(
        f".{name}{{stroke:var(--{series_tone(tone)})}}.swatch.{name}{{background:var(--{series_tone(tone)})}}"
        f".course .on-{name}{{fill:var(--{series_tone(tone)})}}"
        for name, tone in tones
    )


def _shade_rules() -> str:
    """Return the rules for correlation cells: orange for positive, blue for negative values."""
    return "".join(
        f".c{sign}{shade}{{background:color-mix(in srgb,var(--{tone}) {shade * 80 // SHADES}%,transparent)}}"
        for sign, tone in (("p", "s1"), ("m", "s0"))
        for shade in range(1, SHADES + 1)
    )


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
