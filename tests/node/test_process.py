"""The real daemon with the real pynvml, hooks and sockets is killed and restarted."""

import contextlib
import gzip
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.simgpu.creation import create
from lab.simgpu.specs import GpuSpec
from slurm_gpu.munge import decode, request_digest
from slurm_gpu.wire import Record
from tests.database.servers import running_munged

ROOT = Path(__file__).resolve().parents[2]
UUIDS = ["GPU-a", "GPU-b"]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("munged") is None or shutil.which("cc") is None,
    reason="needs root, munged and cc",
)


class Database(ThreadingHTTPServer):
    """A server that accepts shipments with a valid credential and stores each record's newest version."""

    daemon_threads = True

    def __init__(self, munge_socket: Path) -> None:
        self.munge_socket = str(munge_socket)
        self.records: dict[tuple[str, str], Record] = {}
        self.events: dict[int, dict[str, Any]] = {}
        self.live: dict[str, Any] = {}
        self.senders: set[str] = set()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Database

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        scheme, _, text = self.headers["Authorization"].partition(" ")
        credential = decode(text, self.server.munge_socket)
        right = (scheme, credential.uid, credential.payload) == (
            "MUNGE",
            os.geteuid(),
            request_digest("POST", self.path, body),
        )
        shipment = json.loads(gzip.decompress(body)) if right else {"records": [], "events": []}
        self.server.events |= {event["n"]: event for event in shipment["events"]}
        self.server.live = shipment.get("live") or self.server.live
        for wire in shipment["records"]:
            record = Record.from_wire(wire)
            key = (record.segment, record.device)
            if key not in self.server.records or self.server.records[key].seq < record.seq:
                self.server.records[key] = record
        self.server.senders.add(self.client_address[0])
        answer = b'{"stored": 0}'
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


class Daemon:
    """slurm-gpud of a node with two GPUs, and its environment: hooks, slurmd and site file."""

    def __init__(self, directory: Path, database: Database, nvml_library: Path) -> None:
        self.directory = directory
        create(directory / "gpus.world", [GpuSpec(uuid, minor=n) for n, uuid in enumerate(UUIDS)])
        site = f"cluster: lab\ndatabase: http://127.0.0.1:{database.server_port}\n"
        (directory / "site.yaml").write_text(site + f"munge_socket: {database.munge_socket}\n")
        bin_dir = directory / "bin"
        bin_dir.mkdir()
        lines = [f"slurmd: Gres Name=gpu Count=1 File=/nowhere/nvidia{n} (null)" for n in range(2)]
        slurmd = bin_dir / "slurmd"
        slurmd.write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines))
        slurmd.chmod(0o755)
        self.environment = {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(nvml_library.parent),
            "SIMGPU_WORLD": str(directory / "gpus.world"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *more: str) -> list[str]:
        options = [f"--config={self.directory}/site.yaml", "--node=n1", f"--run-dir={self.directory}/run"]
        options += [f"--state-dir={self.directory}/state", "--source-address=127.0.9.1", "--foreground"]
        return [sys.executable, "-m", "slurm_gpu.node.main", *options, *more]

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), env=self.environment, stderr=log, cwd=ROOT)

    def end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(20)

    def hook(self, kind: str, job_id: int, gpus: str) -> None:
        environment = {"SLURM_GPU_RUN_DIR": f"{self.directory}/run", "SLURM_JOB_ID": str(job_id)}
        environment |= {"SLURM_JOB_GPUS": gpus, "SLURMD_NODENAME": "n1", "SLURM_JOB_UID": "0"}
        subprocess.run([ROOT / kind / "10-slurm-gpu"], env=environment, check=True)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    place = tmp_path / "munge"
    place.mkdir()
    with running_munged(place) as munge_socket:
        server = Database(munge_socket)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def daemon(tmp_path: Path, database: Database, nvml_library: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, database, nvml_library)
    yield daemon
    if daemon.process is not None and daemon.process.poll() is None:
        daemon.end(signal.SIGKILL)


def until(met: Callable[[], Any], deadline_s: float = 20) -> None:
    end = time.monotonic() + deadline_s
    while not met():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.02)


def test_a_daemon_killed_at_any_moment_loses_no_job(daemon: Daemon, database: Database) -> None:
    dice = random.Random(20261121)
    kills = sorted(dice.uniform(0, 4) for _ in range(4))
    events = [(dice.uniform(0, 3), "prolog", job) for job in range(1, 13)]
    events += [(at + dice.uniform(0.2, 1.5), "epilog", job) for at, _, job in events]
    steps = [(at, lambda k=kind, j=job: daemon.hook(k, j, str(j % 2))) for at, kind, job in events]

    def kill_and_start() -> None:
        daemon.end(signal.SIGKILL)
        daemon.start()

    daemon.start()
    steps += [(at, kill_and_start) for at in kills]
    begin = time.monotonic()
    for at, act in sorted(steps, key=lambda step: step[0]):
        until(lambda at=at: time.monotonic() >= begin + at)
        act()
    until(lambda: {r.job_id for r in database.records.values() if r.final} == set(range(1, 13)))
    assert {(r.job_id, r.device) for r in database.records.values()} == {
        (job, UUIDS[job % 2]) for job in range(1, 13)
    }
    assert database.senders == {"127.0.9.1"}
    until(lambda: list((daemon.directory / "run" / "jobs").iterdir()) == [])


def test_a_reader_that_crashes_repeatedly_is_an_event_and_a_live_value(
    daemon: Daemon, database: Database
) -> None:
    daemon.start()
    daemon.hook("prolog", 1, "0")

    def reader() -> int | None:
        assert daemon.process is not None
        pid = daemon.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        running = [int(child) for child in children if _is_reader(int(child))]
        return running[0] if running else None

    for _ in range(3):
        until(lambda: reader() is not None)
        crashing = reader()
        assert crashing is not None
        os.kill(crashing, signal.SIGSEGV)
        until(lambda crashing=crashing: reader() not in (None, crashing))
    until(lambda: [e for e in database.events.values() if e["kind"] == "reader_failing"], 30)
    (event,) = (e for e in database.events.values() if e["kind"] == "reader_failing")
    assert event["data"]["deaths"] == 3
    assert "SIGSEGV" in event["data"]["why"]
    until(lambda: database.live.get("host", {}).get("reader_exits") == 3, 30)
    assert "3 readers exited within 60 s" in (daemon.directory / "log").read_text()


def _is_reader(pid: int) -> bool:
    try:
        return b"slurm_gpu.node.gpu.reader" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_sigterm_stores_everything_and_exits_with_0(daemon: Daemon, database: Database) -> None:
    daemon.start()
    daemon.hook("prolog", 1, "1")
    until(lambda: list((daemon.directory / "run" / "jobs").iterdir()) == [])
    assert daemon.end(signal.SIGTERM) == 0
    shown = subprocess.run(
        daemon.command("--once", "--print"),
        env=daemon.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    printed = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [item["device"]["uuid"] for item in printed if "device" in item] == UUIDS
    first, second = (item["record"] for item in printed if "record" in item)
    assert first["device"] == second["device"] == "GPU-b"
    assert first["segment"] != second["segment"]
    assert list(printed[-1]["live"]["devices"]) == UUIDS
    assert "cannot be shipped" not in shown.stderr
    assert database.records == {}


def test_once_prints_a_table(daemon: Daemon, database: Database) -> None:
    command = [word for word in daemon.command("--once") if word != "--foreground"]
    done = subprocess.run(
        command, env=daemon.environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["GPU", "UUID", "NAME", "UTIL", "MEMORY", "POWER", "PROCESSES", "JOBS"]
    assert [line.split()[1] for line in lines] == UUIDS
    assert done.stderr == ""
    assert database.senders == {"127.0.9.1"}


def test_once_fails_if_no_gpu_answers(daemon: Daemon, database: Database) -> None:
    environment = {name: value for name, value in daemon.environment.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        daemon.command("--once"), env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "NVML: " in done.stderr
    # This message gives no reason, because the driver need not be missing.
    assert done.stderr.endswith("no GPU answers\n")


def test_once_fails_if_nothing_can_be_shipped(daemon: Daemon, database: Database) -> None:
    (daemon.directory / "site.yaml").write_text("cluster: lab\ndatabase: http://127.0.0.1:1\n")
    command = daemon.command("--once")
    done = subprocess.run(
        command, env=daemon.environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "unsent records remain in" in done.stderr
    assert "GPU-b" in done.stdout


def test_a_machine_without_slurm_needs_no_site_file(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "slurm_gpu.node.main", "--no-slurm", "--once", "--print", "--node=ws1"]
    command += [f"--run-dir={daemon.directory}/run", f"--state-dir={daemon.directory}/state"]
    environment = {**daemon.environment, "SLURM_GPU_CONF": "/nowhere/slurm-gpu.yaml"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *printed, live = map(json.loads, done.stdout.splitlines())
    assert list(live["live"]["devices"]) == UUIDS
    devices = [item["device"] for item in printed]
    assert [(device["uuid"], device["node"]) for device in devices] == [(uuid, "ws1") for uuid in UUIDS]
    del environment["SLURM_GPU_CONF"]
    typo = [*command, "--config=/nowhere/slurm-gpu.yaml"]
    done = subprocess.run(typo, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "/nowhere/slurm-gpu.yaml" in done.stderr


def test_a_metrics_port_in_use_costs_no_record(daemon: Daemon, database: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with (daemon.directory / "site.yaml").open("a") as site:
            site.write(f"metrics: {{listen: 127.0.0.1:{taken.getsockname()[1]}}}\n")
        daemon.start()
        daemon.hook("prolog", 1, "1")
        daemon.hook("epilog", 1, "1")
        until(lambda: database.records)
    assert "/metrics is off" in (daemon.directory / "log").read_text()


def test_systemd_and_prometheus_are_served_and_a_second_daemon_is_refused(
    daemon: Daemon, database: Database, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (daemon.directory / "site.yaml").open("a") as site:
        site.write(f"metrics: {{listen: 127.0.0.1:{port}}}\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        daemon.environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        daemon.start()
        assert daemon.process is not None
        received = [systemd.recv(200).decode()]
        assert received == ["READY=1"]
        daemon.hook("prolog", 1, "1")
        while received.count("WATCHDOG=1") < 3:
            received.append(systemd.recv(200).decode())
        assert any(line.startswith("STATUS=2 GPUs, ") for line in received)

        def scraped() -> dict[str, float]:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
                text = response.read().decode()
            samples = [sample for f in text_string_to_metric_families(text) for sample in f.samples]
            return {
                f"{s.name}/{s.labels.get('job', '')}{s.labels.get('process', '')}": s.value for s in samples
            }

        until(lambda: scraped().get("slurm_gpu_allocated/1") == 1)
        assert scraped()["slurm_gpud_resident_memory_bytes/reader"] > 1e6

        def another(*how: str) -> subprocess.CompletedProcess[str]:
            command = daemon.command(*how)
            where = {"cwd": ROOT, "env": daemon.environment}
            return subprocess.run(command, **where, capture_output=True, text=True, check=False)

        table = another("--once")
        assert table.returncode == 0, table.stderr
        assert f"process {daemon.process.pid}; it sends" in table.stderr
        assert [line.split()[1] for line in table.stdout.splitlines()[1:]] == UUIDS
        second = another()
        assert second.returncode == 3
        message = (
            f"in use by another slurm-gpud, process {daemon.process.pid}; "
            "stop it, or use another --state-dir and --run-dir"
        )
        assert message in second.stderr
        # Unread messages fill the queue, and later ones are lost.
        systemd.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                systemd.recv(200)
        systemd.settimeout(20)
        assert daemon.end(signal.SIGTERM) == 0
        while received[-1] != "STOPPING=1":
            received.append(systemd.recv(200).decode())


def test_a_second_slurm_gpud_with_its_own_spool_cannot_use_the_hook_directory(
    daemon: Daemon, database: Database
) -> None:
    daemon.start()
    daemon.hook("prolog", 7, "0")
    until(lambda: list((daemon.directory / "run" / "jobs").iterdir()) == [])
    second = daemon.command(f"--state-dir={daemon.directory}/other")
    refused = subprocess.run(
        second, cwd=ROOT, env=daemon.environment, capture_output=True, text=True, check=False, timeout=30
    )
    assert refused.returncode == 3
    assert f"{daemon.directory}/run/jobs is in use by another slurm-gpud; stop it" in refused.stderr


def test_a_closed_output_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "slurm_gpu.node.main", "applications", "--check"]
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | true', "bash", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_site_file_is_named_and_exits_with_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slurm_gpu.node.main", f"--config={tmp_path}/none.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert f"{tmp_path}/none.yaml" in done.stderr
