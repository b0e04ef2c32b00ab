"""Measure the cost of a report and of its page, with 14 months of generated accounting.

`slurm-gpu report build --page-only` is measured in a separate process, from its start until the HTML file is
complete, and so is the whole report with its tables and pictures. If Chromium and Python's playwright are
installed, the page of the first size is opened, headless and without graphics hardware:

- load: from requesting the page until its lines are drawn, the median of five;
- brush: from a movement of the mouse until the selected jobs are drawn, the longest of 21.

The median processor time of the page's main thread, which depends less on other load, is also measured.

    .venv/bin/python bench/report.py [--jobs 39470,1000000] [--json]

Keys of --json, for each number of jobs N: html_s_N, html_cpu_s_N, rss_mib_N, html_mb_N, all_s_N and
all_rss_mib_N; and load_ms, load_cpu_ms, brush_ms, brush_median_ms, brush_cpu_ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments
from bench.browser import MainThreadTime, chromium
from slurm_gpu.database.storage.engine import Database
from tests.reports.filling import fill
from tests.reports.generated import RATES, SINCE, TIMEZONE, UNTIL, Accounting, generate

_LOADS, _MOVES = 5, 20
_WIDTH, _HEIGHT = 1280, 900
_DRAWN = "#parallel[data-drawn]"
# The measured time ends when the frame with the newly drawn lines has been submitted for display.
_BRUSH = """([x, y]) => new Promise((done) => {
  const root = document.getElementById("parallel"), start = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  }).observe(root, { attributes: true, attributeFilter: ["data-drawn"] });
  const move = { clientX: x, clientY: y, pointerId: 1, bubbles: true };
  document.querySelectorAll(".hit")[2].dispatchEvent(new PointerEvent("pointermove", move));
})"""


@dataclass(frozen=True)
class Built:
    """The time and memory of one run of the command."""

    wall_s: float
    cpu_s: float
    rss_mib: float


def prepare(directory: Path, jobs: int) -> None:
    """Create a database with this number of jobs, and its configuration files."""
    directory.mkdir()
    accounting = generate(jobs)
    url = f"sqlite:///{directory / 'slurm-gpu.db'}"
    database = Database(url)
    database.upgrade()
    fill(database, accounting)
    database.engine.dispose()
    settings = directory / "slurm-gpudbd.yaml"
    settings.touch(mode=0o600)
    settings.write_text(f"url: {url}\n")
    (directory / "slurm-gpu.yaml").write_text(_site(accounting))


def _site(accounting: Accounting) -> str:
    lines = ["cluster: neuron", f"timezone: {TIMEZONE}", "server_types:"]
    for name, rate in RATES.items():
        nodes = ",".join(node.name for node in accounting.nodes if node.server_type == name)
        lines.append(f"  {name}: {{nodes: '{nodes}', rate_per_gpu_hour: {rate}}}")
    lines += ["team:", *(f"  {account}: {team}" for account, team in accounting.team_of.items())]
    return "\n".join(lines) + "\n"


def build(directory: Path, out: Path, *options: str) -> Built:
    """Run the command; raise SystemExit if it fails."""
    since, until = (date(*day).isoformat() for day in (SINCE, UNTIL))
    command = [
        sys.executable,
        "-m",
        "slurm_gpu.cli.main",
        "--config",
        str(directory / "slurm-gpu.yaml"),
        "report",
        "build",
        "--since",
        since,
        "--until",
        until,
        "--out",
        str(out),
        "--database-config",
        str(directory / "slurm-gpudbd.yaml"),
        *options,
    ]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"slurm-gpu report build failed:\n{said}")
    return Built(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def load_ms(browser: Any, page: Path) -> list[tuple[float, float]]:
    """Return the time from the request until the lines are drawn, and the main thread's time."""
    found = []
    for _ in range(_LOADS):
        tab = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        tab.goto("about:blank")
        worked = MainThreadTime(tab)
        started = time.perf_counter()
        tab.goto(page.as_uri())
        tab.locator(_DRAWN).wait_for(state="attached")
        found.append((1000 * (time.perf_counter() - started), worked.since()))
        tab.close()
    return found


def brush_ms(browser: Any, page: Path) -> list[tuple[float, float]]:
    """Return both times for each movement of a brush on the third axis, from its lower to its upper end."""
    tab = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
    tab.goto(page.as_uri())
    tab.locator(_DRAWN).wait_for(state="attached")
    tab.locator("#parallel .overlay").scroll_into_view_if_needed()
    tab.wait_for_timeout(500)
    box = tab.locator(".hit").nth(2).bounding_box()
    x, lower = box["x"] + box["width"] / 2, box["y"] + box["height"] - 4
    tab.mouse.move(x, lower)
    tab.mouse.down()
    worked, found = MainThreadTime(tab), []
    for move in range(_MOVES + 1):
        shown_ms = tab.evaluate(_BRUSH, [x, lower - 6 - (box["height"] - 14) * move / _MOVES])
        found.append((shown_ms, worked.since()))
    tab.mouse.up()
    tab.close()
    return found


def measure(directory: Path, sizes: list[int]) -> dict[str, float]:
    """Measure all sizes in order."""
    values: dict[str, float] = {}
    for size in sizes:
        place = directory / str(size)
        prepare(place, size)
        out = place / "report"
        page = build(place, out, "--page-only")
        whole = build(place, place / "whole")
        values |= {
            f"html_s_{size}": round(page.wall_s, 2),
            f"html_cpu_s_{size}": round(page.cpu_s, 2),
            f"rss_mib_{size}": round(page.rss_mib),
            f"html_mb_{size}": round((out / "report.html").stat().st_size / 1e6, 2),
            f"all_s_{size}": round(whole.wall_s, 2),
            f"all_rss_mib_{size}": round(whole.rss_mib),
        }
        print(f"{size} jobs: the page {page.wall_s:.1f} s ({page.cpu_s:.1f} s of processor time), ", end="")
        print(f"{page.rss_mib:.0f} MiB; with tables and pictures {whole.wall_s:.1f} s", flush=True)
    page_of_first = directory / str(sizes[0]) / "report" / "report.html"
    with chromium() as browser:
        if browser is None:
            print("no Chromium, or no playwright: the page was not measured")
            return values
        moves, moves_cpu = zip(*brush_ms(browser, page_of_first), strict=True)
        loads, loads_cpu = zip(*load_ms(browser, page_of_first), strict=True)
        values |= {
            "load_ms": round(statistics.median(loads)),
            "load_cpu_ms": round(statistics.median(loads_cpu)),
            "brush_ms": round(max(moves)),
            "brush_median_ms": round(statistics.median(moves)),
            "brush_cpu_ms": round(statistics.median(moves_cpu)),
        }
    template = "in Chromium: {load_ms} ms until drawn, {load_cpu_ms} ms of its main thread; a brush "
    template += "{brush_median_ms} ms ({brush_cpu_ms} ms), {brush_ms} ms at most"
    print(template.format(**values))
    return values


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure the cost of building a report.")
    parser.add_argument(
        "--jobs", type=arguments.numbers, default=[39_470, 1_000_000], help="default 39470,1000000"
    )
    parser.add_argument(
        "--directory",
        type=arguments.directory,
        help="where to write (default: a temporary one)",
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sgr-", dir=options.directory) as made:
        values = measure(Path(made), options.jobs)
    if options.json:
        print(json.dumps(values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
