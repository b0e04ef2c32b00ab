"""A process that draws the page on one diagnosis: what is known of the run comes in, the page goes out.

slurm-gpuweb starts it for each page that somebody opens, so that neither numpy's memory nor the seconds of a
large job are its own. It asks nobody for anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.reports.diagnosed.document import OnSite
from slurm_gpu.reports.diagnosed.judged import judged
from slurm_gpu.reports.diagnosed.run_page import run_page
from slurm_gpu.wire.answers.codec import from_json
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.runs import NodeWindow, Run, RunTimeline


def page_of(asked: Any) -> str:
    """The page of {run, windows, hosts, timelines, min_coverage, timezone, now_s, site} as JSON has them."""
    run = from_json(Run, asked["run"])
    rules = DiagnosisThresholds(min_coverage=asked["min_coverage"])
    found = judged(
        run,
        from_json(list[NodeWindow], asked["windows"]),
        from_json(list[RunTimeline], asked["timelines"]),
        rules,
        hosts=from_json(list[NodeMinutes], asked["hosts"]),
    )
    return run_page(run, found, rules, asked["timezone"], asked["now_s"], OnSite(**asked["site"]))


def step_back() -> None:
    """Let whoever serves pages go first, and stay where memory ends; not every service may have it so."""
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    step_back()
    sys.stdout.buffer.write(page_of(json.load(sys.stdin.buffer)).encode())
