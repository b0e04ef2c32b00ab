"""Measure throughput and resources of slurm-gpuweb with synthetic clusters (lab/synthetic.py).

The server is a separate process, bench/monitor_server.py; its cluster changes every five seconds. The
benchmark measures

- a refresh: the event, the frame of utilisation and the changed jobs, compressed as for a browser, as the
  mean of several states;
- answers per second: whole frames of utilisation without any 304, of one process on 16 connections, each
  request with a session that is verified;
- the first load of a page: layout, frame, jobs and alerts, and the time of the server for them;
- the page in Chromium, if it is installed (bench/monitor_page.py);
- pages of ended jobs, usage over time and listing commands, with `--runs` runs in a database
  (bench/monitor_runs.py; needs root, and no lab may be up);
- streams of events: the growth of the server's memory with `--listeners` clients in the second half of the
  time (the first 4 minutes fill the window of watched jobs), and missed events.

    .venv/bin/python bench/monitor.py [--gpus 10240,40960] [--listeners 200] [--listen 600]
        [--runs 1000000] [--server-only | --page-only | --runs-only] [--json]

Keys of --json, for each number of GPUs N:

page    redraw_ms_N, redraw_cpu_ms_N, load_ms_N, load_cpu_ms_N, page_refresh_bytes_N
server  refresh_bytes_N, requests_per_s_N, requests_per_cpu_s_N (for machines with other load), load_bytes_N,
        first_load_ms_N, rss_mib_N (with its synthetic cluster)
both    requests_per_s (of the first N), events_grown_mib, events_missed
runs    jobs_page_ms_R, command_ms_R (with R runs: the largest median of all requests), strip_ms, strip_bytes,
        strip_ms_30_days, strip_bytes_30_days
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number, numbers, seconds
from bench.monitor_load import Listeners, get, requests_per_s
from bench.monitor_page import page_figures
from bench.monitor_runs import runs_figures

HERE = Path(__file__).resolve().parent
Headers = dict[str, str]
GZIP: Headers = {"Accept-Encoding": "gzip"}
FRAME = "/api/v1/frame?metric=util"
_STATES = 6
_CONNECTIONS = 16


@contextlib.contextmanager
def serving(gpus: int, every_s: float) -> Iterator[tuple[int, str, psutil.Process]]:
    """Run a server of a synthetic cluster; yield its port, a session cookie, and its process."""
    argv = [
        sys.executable,
        str(HERE / "monitor_server.py"),
        f"--gpus={gpus}",
        "--port=0",
        f"--every={every_s}",
        "--sessions",
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
        try:
            yield port, process.stdout.readline().strip(), psutil.Process(process.pid)
        finally:
            process.terminate()


def refresh(port: int, signed_in: Headers, every_s: float) -> tuple[float, float]:
    """Return the bytes of one new state of a page, without and with HTTP headers."""
    changes = json.loads(get(port, "/api/v1/jobs", signed_in).body)
    bodies, wholes = [], []
    packed = {**signed_in, **GZIP}
    listeners = Listeners(port, "/api/v1/events", 1, signed_in)
    with contextlib.closing(listeners):
        n_seen = 0
        for some in listeners.listen((_STATES + 2) * every_s):
            event = some[some.find(b"event: state") :]
            if b"event: state" not in some:
                continue
            n_seen += 1
            frame = get(port, FRAME, packed)
            changed = get(port, f"/api/v1/jobs?since={changes['version']}", packed)
            changes = json.loads(get(port, f"/api/v1/jobs?since={changes['version']}", signed_in).body)
            assert not changes["all"], "the changes are unknown"
            if n_seen > 1:  # the first event is for the current state
                body = len(event) + len(frame.body) + len(changed.body)
                bodies.append(body)
                wholes.append(body + frame.head_bytes + changed.head_bytes)
            if n_seen > _STATES:
                break
    return statistics.mean(bodies), statistics.mean(wholes)


def first_load(port: int, signed_in: Headers) -> tuple[int, float]:
    """Return compressed bytes of layout, frame and jobs, and the ms until the last one, in sequence."""
    gots = [
        get(port, path, {**signed_in, **GZIP})
        for path in ("/api/v1/layout", FRAME, "/api/v1/jobs", "/api/v1/attention")
    ]
    return sum(len(got.body) for got in gots), 1000 * sum(got.seconds for got in gots)


def events(
    port: int, signed_in: Headers, process: psutil.Process, n: int, listen_s: float, every_s: float
) -> tuple[float, int]:
    """Return the growth of the server's memory in MiB, and the number of events that clients missed."""
    listeners = Listeners(port, "/api/v1/events", n, signed_in)
    with contextlib.closing(listeners):
        for _ in listeners.listen(listen_s / 2):
            pass
        before, counted = process.memory_info().rss, listeners.n_events
        began = json.loads(get(port, "/api/v1/jobs", signed_in).body)["version"]
        for _ in listeners.listen(listen_s / 2):
            pass
        states = json.loads(get(port, "/api/v1/jobs", signed_in).body)["version"] - began
        grown = (process.memory_info().rss - before) / (1 << 20)
        # The counts may differ by one state, because they are not taken at the same moment.
        missed = max(0, n * (states - 1) - (listeners.n_events - counted))
    return grown, missed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page-only", action="store_true", help="measure only the page, not the server")
    parser.add_argument("--server-only", action="store_true", help="do not measure the page")
    parser.add_argument("--runs-only", action="store_true", help="measure only the database of runs")
    parser.add_argument("--runs", type=number(1000), default=1_000_000)
    parser.add_argument("--gpus", type=numbers, default=[10_240, 40_960])
    parser.add_argument("--seconds", type=seconds(1), default=10.0, help="time for counting answers")
    parser.add_argument("--every", type=seconds(1), default=5.0, help="seconds between states")
    parser.add_argument("--listeners", type=number(1, 250), default=200)
    parser.add_argument("--listen", type=seconds(10), default=600.0)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    results: dict[str, float] = {}
    if not (options.page_only or options.server_only):
        results |= runs_figures(options.runs)
    for gpus in () if options.runs_only else options.gpus:
        with serving(gpus, options.every) as (port, cookie, process):
            signed_in = {"Cookie": cookie}
            if not options.server_only:
                results |= page_figures(port, cookie, gpus, options.every)
            if options.page_only:
                continue
            load_bytes, load_ms = first_load(port, signed_in)
            body, whole = refresh(port, signed_in, options.every)
            results[f"refresh_bytes_{gpus}"] = round(body)
            results[f"load_bytes_{gpus}"] = load_bytes
            results[f"first_load_ms_{gpus}"] = round(load_ms, 1)
            cpu_s = sum(process.cpu_times()[:2])
            rate = requests_per_s(port, FRAME, {**signed_in, **GZIP}, _CONNECTIONS, options.seconds)
            busy = (sum(process.cpu_times()[:2]) - cpu_s) / options.seconds
            results[f"requests_per_s_{gpus}"] = round(rate)
            results[f"requests_per_cpu_s_{gpus}"] = round(rate / busy) if busy else 0
            results.setdefault("requests_per_s", round(rate))
            plain = requests_per_s(port, FRAME, signed_in, _CONNECTIONS, options.seconds)
            results[f"rss_mib_{gpus}"] = round(process.memory_info().rss / (1 << 20))
            print(
                f"{gpus:,} GPUs: a refresh takes {body:,.0f} bytes ({whole:,.0f} with its headers); "
                f"{rate:,.0f} frames/s packed, {plain:,.0f} not, at {100 * busy:.0f} % of a processor; "
                f"first load {load_bytes:,} bytes in {load_ms:.0f} ms; {results[f'rss_mib_{gpus}']:,} MiB",
                flush=True,
            )
            if gpus == options.gpus[0]:
                grown, missed = events(
                    port, signed_in, process, options.listeners, options.listen, options.every
                )
                results |= {"events_grown_mib": round(grown, 2), "events_missed": missed}
                print(
                    f"{options.listeners} streams of events for {options.listen:g} s: {grown:+.1f} MiB, "
                    f"{missed} events missed",
                    flush=True,
                )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
