"""Diagnose a run in a separate process, from JSON on standard input, and write the page or the verdict.

slurm-gpuweb starts this process for each request. The server thus needs neither the memory of numpy nor the
seconds of CPU time that a large job takes. The process itself makes no requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.reports.diagnosed.document import SiteLinks
from slurm_gpu.reports.diagnosed.judged import judge_run
from slurm_gpu.reports.diagnosed.run_page import run_page
from slurm_gpu.wire.answers.codec import from_json
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.runs import NodeWindow, Run, RunTimeline


def answer_to(request: Any) -> str:
    """Return the page for a request, or its verdict as JSON if `form` is "verdict".

    The keys of a request are form, run, windows, hosts, timelines, min_coverage, timezone, now_s and site.
    """
    run = from_json(Run, request["run"])
    rules = DiagnosisThresholds(min_coverage=request["min_coverage"])
    found = judge_run(
        run,
        from_json(list[NodeWindow], request["windows"]),
        from_json(list[RunTimeline], request["timelines"]),
        rules,
        hosts=from_json(list[NodeMinutes], request["hosts"]),
    )
    if request["form"] == "verdict":
        return json.dumps({"by": found.by, "verdict": found.verdict.to_json()})
    return run_page(run, found, rules, request["timezone"], request["now_s"], SiteLinks(**request["site"]))


def step_back() -> None:
    """If permitted, yield CPU time to the web server, and make this process the first OOM victim."""
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    step_back()
    sys.stdout.buffer.write(answer_to(json.load(sys.stdin.buffer)).encode())
