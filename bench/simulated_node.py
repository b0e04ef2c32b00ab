"""A node with simulated GPUs and slurm-gpud as installed: real process, hook files, MUNGE and NVML binding.

Only the driver's library, slurmd's answer to `slurmd -G` and slurm-gpudbd are replaced.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lab.nvml import build
from lab.simgpu.creation import create
from lab.simgpu.load import Point
from lab.simgpu.specs import GpuSpec
from lab.simgpu.world import World
from tests.database.servers import running_munged

ROOT = Path(__file__).resolve().parent.parent
# A unique name, also in /sys/fs/cgroup, so that a killed run does not conflict.
NODE = f"bench{os.getpid()}"
PHASE_S = 2.0
MEMORY_MIB = 40960
_POINTS = 500
# Jobs belong to a user other than root, if there is one.
USER = 65534 if os.geteuid() == 0 else os.geteuid()
# The hierarchies of cgroup v1 in which Slurm's plugins place a job's processes.
CGROUPS = [Path("/sys/fs/cgroup") / name for name in ("freezer", "cpuacct", "memory")]
# Processes of jobs are interpreters with some mapped libraries.
_JOB = """
import os, sys, time, numpy
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
time.sleep(1e6)
"""


@dataclass(frozen=True)
class Shipment:
    """One POST of the daemon; `body` is its length as sent, compressed."""

    at_s: float
    body: int
    content: Mapping[str, Any]


class Sink(ThreadingHTTPServer):
    """A server that accepts everything and answers like slurm-gpudbd."""

    daemon_threads = True

    def __init__(self) -> None:
        self.shipments: list[Shipment] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = json.loads(gzip.decompress(body))
        self.server.shipments.append(Shipment(time.monotonic(), len(body), content))
        jobs = {str(item["job_id"]): {"shards": None} for item in content["records"]}
        answer = {"stored": len(content["records"]), "stale": 0, "rejected": [], "rejected_events": []}
        data = json.dumps(answer | {"want": [], "jobs": jobs, "ended": {}, "wire": [1, 1]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class SimulatedNode:
    """A node in `directory` with `gpus` GPUs, each used by one process of one job."""

    def __init__(self, directory: Path, gpus: int, munge_socket: Path) -> None:
        self.directory, self.gpus = directory, gpus
        self.world_file = directory / "gpus.world"
        specs = [GpuSpec(f"GPU-{n:08x}-0000-0000-0000-000000000000", minor=n) for n in range(gpus)]
        create(self.world_file, specs, boot=time.time() - 86400)
        self.world = World(self.world_file)
        self.sink = Sink()
        self._turn = 0
        self._workers: list[subprocess.Popen[bytes]] = []
        self._groups: list[Path] = []
        self.library = build(directory / "lib")
        site = f"cluster: bench\ndatabase: {self.sink.url}\nmunge_socket: {munge_socket}\n"
        (directory / "site.yaml").write_text(site)
        bin_dir = directory / "bin"
        bin_dir.mkdir()
        lines = [f"slurmd: Gres Name=gpu Count=1 File=/nowhere/nvidia{n} (null)" for n in range(gpus)]
        (bin_dir / "slurmd").write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines))
        (bin_dir / "slurmd").chmod(0o755)
        self.environment = {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(self.library.parent),
            "SIMGPU_WORLD": str(self.world_file),
        }

    def work(self, seed: int = 1) -> None:
        """Start a process on each GPU; its utilisation and memory change every PHASE_S."""
        dice = random.Random(seed)
        for gpu in range(self.gpus):
            environment = os.environ | {"SLURM_JOB_ID": str(self.job_of(gpu))}
            command = [sys.executable, "-c", _JOB, str(USER)]
            worker = subprocess.Popen(command, env=environment)
            self._workers.append(worker)
            self._enclose(self.job_of(gpu), worker.pid)
            now_ns = time.time_ns()
            times = [now_ns + round(n * PHASE_S * 1e9) for n in range(_POINTS)]
            points = [Point(at, dice.uniform(0, 100), dice.uniform(0, 0.9) * MEMORY_MIB) for at in times]
            self.world.register(gpu, points, worker.pid)

    def _enclose(self, job_id: int, pid: int) -> None:
        """Move the process into cgroups like those of Slurm, if this host permits."""
        if os.geteuid() != 0 or not all((place / "cgroup.procs").exists() for place in CGROUPS):
            return
        for place in CGROUPS:
            group = place / f"slurm_{NODE}" / f"uid_{USER}" / f"job_{job_id}" / "step_batch"
            group.mkdir(parents=True)
            self._groups.append(group)
            (group / "cgroup.procs").write_text(str(pid))

    @property
    def has_cgroups(self) -> bool:
        """Return whether jobs have cgroups; without them slurm-gpud uses their environment."""
        return bool(self._groups)

    def job_of(self, gpu: int) -> int:
        return 1000 + gpu

    @contextlib.contextmanager
    def daemon(self, *, job_age_s: float | None) -> Iterator[subprocess.Popen[bytes]]:
        """Run slurm-gpud with empty state, and a prolog file of each job, `job_age_s` old (None: no jobs)."""
        self._turn += 1
        place = self._place
        (place / "run" / "jobs").mkdir(parents=True)
        if job_age_s is not None:
            self.hooks("prolog", job_age_s)
        options = [f"--config={self.directory}/site.yaml", f"--node={NODE}", f"--run-dir={place}/run"]
        options += [f"--state-dir={place}/state"]
        with (place / "log").open("wb") as log:
            command = [sys.executable, "-m", "slurm_gpu.node.main", *options]
            process = subprocess.Popen(command, env=self.environment, stderr=log, cwd=ROOT)
        try:
            yield process
        finally:
            process.terminate()
            if process.wait(30) != 0:
                raise SystemExit(f"slurm-gpud failed:\n{(place / 'log').read_text()}")

    def hooks(self, kind: str, age_s: float = 0.0) -> None:
        """Write the files of the jobs' hooks, `age_s` old."""
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME) - age_s
        if uptime_s < 0:
            raise SystemExit(f"this machine is up for less than the {age_s:g} s that its jobs must be old")
        for gpu in range(self.gpus):
            at_ns, job = time.time_ns() - round(age_s * 1e9), self.job_of(gpu)
            values = {"EVENT": kind, "AT_NS": at_ns, "UPTIME_S": f"{uptime_s:.2f}", "BOOT_ID": boot_id}
            values |= {"SLURM_JOB_ID": job, "SLURM_JOB_UID": USER, "SLURM_JOB_GPUS": gpu}
            values |= {"SLURMD_NODENAME": NODE, "SLURM_CLUSTER_NAME": "bench"}
            name = f"{at_ns}-{job}-{kind}"
            hidden = self._place / "run" / "jobs" / f".{name}"
            hidden.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
            hidden.rename(hidden.with_name(name))

    @property
    def _place(self) -> Path:
        """Return the directory of the last daemon."""
        return self.directory / f"turn-{self._turn}"

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        for group in self._groups:
            for empty in (group, *group.parents[:3]):
                with contextlib.suppress(OSError):  # until the last job's group is removed
                    empty.rmdir()
        self.sink.shutdown()


@contextlib.contextmanager
def simulated_node(directory: Path, gpus: int) -> Iterator[SimulatedNode]:
    """Yield a node with its own munged."""
    munge = directory / "munge"
    munge.mkdir()
    with running_munged(munge) as socket:
        node = SimulatedNode(directory, gpus, socket)
        try:
            node.work()
            yield node
        finally:
            node.close()
