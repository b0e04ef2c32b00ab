"""Write the pictures of the monitoring page and of a report for README.md and docs: `make screenshot`.

The pictures show a lab of 16 nodes with 8 simulated GPUs each. Jobs of the lab's users run on it for about
six minutes. The past before is generated (bench/lab_history.py). Needs root, and no other lab on this host.

    .venv/bin/python bench/screenshot.py docs/images
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.browser import chromium
from bench.lab_history import store_history
from lab.cluster import Lab
from lab.options import JobSubmit, NodeGpus, Options

_SIZE = {"width": 1280, "height": 800}
_NODES, _GPUS = 16, 8
_DAYS, _FIRST_JOB = 60, 48_211
# An idle GPU becomes an alert after four minutes, and then the page needs its next values.
_WATCHED_S = 330.0
_WHOLE_NODE = f"--gres=gpu:{_GPUS}"

# User, options and utilisation in per cent (None: the job leaves its GPUs idle), and the duration in seconds.
_JOBS: Sequence[tuple[str, Sequence[str], int | None, int]] = (
    ("alice", ("-N4", _WHOLE_NODE, "-Jllm-pretrain", "--time=1-12"), 91, 1200),
    ("carol", ("-N2", _WHOLE_NODE, "-Jvit-large", "--time=8:00:00"), 78, 1200),
    ("carol", ("-N2", _WHOLE_NODE, "-Jmd-membrane", "--time=20:00:00"), 74, 1200),
    ("alice", (_WHOLE_NODE, "-Jspeech", "--time=16:00:00"), 63, 1200),
    ("bob", (_WHOLE_NODE, "-Jrlhf", "--time=12:00:00"), 66, 1200),
    ("bob", (_WHOLE_NODE, "-Jdebug-session", "--time=6:00:00"), None, 1200),
    ("alice", ("--gpus=4", "-N1", "-Jdiffusion", "--time=4:00:00"), 84, 1200),
    ("alice", ("--gpus=4", "-N1", "-Jfinetune", "--time=3:00:00"), 71, 1200),
    ("carol", ("--gpus=4", "-N1", "-Jmd-water", "--time=10:00:00"), 58, 1200),
    ("carol", ("--gpus=2", "-N1", "-Jnotebook", "--time=2:00:00"), None, 1200),
    ("bob", ("--array=0-15", "--gpus=1", "-Jsweep", "--time=1:00:00"), 45, 1200),
    ("bob", ("--array=0-5", "--gpus=1", "-Jeval", "--time=20"), 37, 60),
    ("alice", ("--gpus=2", "-N1", "-Jtokenize", "--time=20"), 12, 45),
    ("alice", ("-N8", _WHOLE_NODE, "-Jllm-scale", "--time=2-00"), 90, 1200),
    ("carol", ("-N6", _WHOLE_NODE, "-Jvit-huge", "--time=1-00"), 80, 1200),
)


def _submit_all(lab: Lab) -> None:
    for user, options, utilisation, seconds in _JOBS:
        program = f"simgpu --util {utilisation} --mem-mib 30000 --seconds {seconds}"
        is_distributed = any(option.startswith("-N") and option != "-N1" for option in options)
        work = f"sleep {seconds}" if utilisation is None else f"srun {program}" if is_distributed else program
        tasks = ("--ntasks-per-node=1",) if is_distributed else ()
        lab.submit(user, *options, *tasks, "--mem-per-gpu=10G", f"--wrap={work}")


def _page(lab: Lab, browser: Any, file: Path) -> None:
    link = json.loads(lab.output(["slurm-gpu", "web", "--json"], user="carol"))["url"]
    tab = browser.new_context(viewport=_SIZE, device_scale_factor=1.5).new_page()
    tab.goto(link)
    tab.locator("#frame[data-drawn]").wait_for()
    tab.wait_for_timeout(15_000)  # rates and trends need several states
    tab.screenshot(path=file)


def _report(lab: Lab, browser: Any, file: Path, directory: Path) -> None:
    """Build the report of the last 14 days, and take a picture of its first screen."""
    since = (datetime.now(UTC) - timedelta(days=14)).date().isoformat()
    command = ["slurm-gpu", "report", "build", "--since", since, "--out", str(directory), "--page-only"]
    lab.output([*command, "--database-config", str(lab.layout.database_file)])
    tab = browser.new_context(viewport=_SIZE, device_scale_factor=1.5).new_page()
    tab.goto((directory / "report.html").as_uri())
    tab.screenshot(path=file)


def main() -> None:
    """Start the lab, run the jobs, and write both pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where to write page.png and report.png")
    directory = parser.parse_args().directory
    nodes = {f"n{number}": NodeGpus(minors=tuple(range(_GPUS))) for number in range(1, _NODES + 1)}
    options = Options(
        nodes=_NODES,
        gpus=nodes,
        native_limits=False,
        job_submit=JobSubmit.NOOP,
        extra_slurm_conf=(f"FirstJobId={_FIRST_JOB}",),
    )
    lab = Lab(options=options, report=print)
    if any(lab.status().values()):
        raise SystemExit("a lab is up, but the pictures require a new one; take it down first: lab/down")
    with chromium() as browser, tempfile.TemporaryDirectory(prefix="sg-report-") as made:
        if browser is None:
            raise SystemExit("needs Chromium and playwright: run `make setup browser`")
        lab.down()  # an interrupted lab may have left files, mounts or processes
        try:
            lab.up()
            lab.wait_until_idle_nodes()
            store_history(lab, _DAYS, time.time(), _FIRST_JOB)
            _submit_all(lab)
            time.sleep(_WATCHED_S)
            _page(lab, browser, directory / "page.png")
            _report(lab, browser, directory / "report.png", Path(made) / "report")
        finally:
            lab.down()
    for name in ("page.png", "report.png"):
        print(f"{directory / name}: {(directory / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
