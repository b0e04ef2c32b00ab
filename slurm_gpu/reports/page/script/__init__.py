"""The script of a report's page: small files, each with one purpose, put together to one.

They share one scope, in this order. Nothing else is on the page, so there is nothing to be loaded.
"""

from __future__ import annotations

from importlib.resources import files

PARTS = (
    "plot.js",
    "data.js",
    "scales.js",
    "choice.js",
    "density.js",
    "painting.js",
    "words.js",
    "axes.js",
    "brushing.js",
    "ordering.js",
    "filtering.js",
    "start.js",
)


def page_script() -> str:
    """The whole script, in a scope of its own."""
    here = files(__package__)
    parts = (here.joinpath(name).read_text("utf-8") for name in PARTS)
    return "\n".join(('"use strict";', "(() => {", *parts, "})();", ""))
