"""Bundle the script of the report's page from small files.

The files are joined in the order of PARTS and share one scope. The page contains the whole script, so it
loads nothing.
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
    """Return the whole script, in its own scope."""
    here = files(__package__)
    parts = (here.joinpath(name).read_text("utf-8") for name in PARTS)
    return "\n".join(('"use strict";', "(() => {", *parts, "})();", ""))
