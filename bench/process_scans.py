"""Measure the cost of sampling jobs' processes in slurm-gpud: 8 jobs of 10 real processes each.

    .venv/bin/python bench/process_scans.py [--jobs 8] [--processes 10]

Prints JSON. `percent_core_*` is the CPU use with one sample per 10 s, the interval for a long job.
`recognition_ms` is the time of one search for applications in processes with as many memory maps as PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import arguments
from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.application.recognition import PROCESSES_PER_SCAN, Recognition
from slurm_gpu.node.application.rules import SHIPPED, load_rules
from slurm_gpu.node.host.host_records import HostRecorder, Mounts
from slurm_gpu.node.host.host_watch import PAUSE_S
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.node.process.procfs import Processes
from tests.node.machine import ImmediateWorker

USER = 65534 if os.geteuid() == 0 else os.geteuid()
MAPPED = 4000
"""Lines of /proc/PID/maps of a process that has imported PyTorch with CUDA."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=arguments.number(1), default=8, help="default 8")
    parser.add_argument("--processes", type=arguments.number(1), default=10, help="of each (default 10)")
    options = parser.parse_args()
    with jobs(options.jobs, options.processes) as running, tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        grouped = Mounts(cgroup=cgroups(root, running))
        ungrouped = Mounts(cgroup=root / "none")
        print(
            json.dumps(
                {
                    "jobs": options.jobs,
                    "processes_per_job": options.processes,
                    "percent_core_cgroups": percent_core(grouped, len(running)),
                    "percent_core_environments": percent_core(ungrouped, len(running)),
                    "processes_on_this_machine": len(Processes().ids()),
                    "recognition_ms": recognition_ms(root),
                    "recognition_processes": PROCESSES_PER_SCAN,
                },
                indent=2,
            )
        )


@contextmanager
def jobs(count: int, processes: int) -> Iterator[Sequence[Sequence[int]]]:
    """Yield process ids by job; each process claims its job in its environment."""
    with ExitStack() as stack:
        yield [
            [
                stack.enter_context(
                    subprocess.Popen(
                        ["cat"],  # the process ends with its input
                        stdin=subprocess.PIPE,
                        env={"SLURM_JOB_ID": str(job)},
                        user=USER,
                    )
                ).pid
                for _ in range(processes)
            ]
            for job in range(1, count + 1)
        ]


def cgroups(root: Path, running: Sequence[Sequence[int]]) -> Path:
    """Create directories like those of Slurm on cgroup v2, without the kernel's memory counters."""
    (root / "v2").mkdir()
    (root / "v2" / "cgroup.controllers").write_text("cpu\n")
    for job, pids in enumerate(running, 1):
        task = root / f"v2/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0"
        task.mkdir(parents=True)
        (task / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        (task.parents[2] / "cpu.stat").write_text("usage_usec 1000000\n")
    return root / "v2"


def percent_core(mounts: Mounts, count: int, rounds: int = 40) -> float:
    book = HostRecorder("n1", load_rules(SHIPPED[0]), mounts=mounts, worker=ImmediateWorker())
    for job in range(1, count + 1):
        book.begin(allocation(job))
    now_s = 10_000.0
    for _ in range(3):  # recognition in processes not seen before
        book.step(now_s, dict)
        now_s += PAUSE_S
    began = time.process_time()
    for _ in range(rounds):
        book.step(now_s, dict)
        assert len(book.hosts(now_s)) == count
        now_s += PAUSE_S
    return round(100 * (time.process_time() - began) / rounds / PAUSE_S, 4)


def recognition_ms(root: Path) -> float:
    line = "7f{0:010x}000-7f{0:010x}fff r-xp 00000000 103:02 1   /env/lib/site-packages/p{1}/lib{2}.so\n"
    maps = "".join(line.format(n, n % 60, n % 500) for n in range(MAPPED))
    for pid in range(1, PROCESSES_PER_SCAN + 1):
        directory = root / "proc" / str(pid)
        directory.mkdir(parents=True)
        (directory / "stat").write_text((Path("/proc") / str(os.getpid()) / "stat").read_text())
        (directory / "exe").symlink_to("/usr/bin/python3")
        (directory / "cmdline").write_text("python3\0train.py\0--batch-size\0" + "64\0")
        (directory / "maps").write_text(maps)
    recognition = Recognition(load_rules(SHIPPED[0]), Processes(root / "proc"))
    return round(1000 * spent(lambda: recognition.scan(range(1, PROCESSES_PER_SCAN + 1))), 1)


def spent(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def allocation(job: int) -> Allocation:
    key = SegmentKey(
        cluster="bench", job_id=job, restart=0, prolog_s=1, node="n1", boot_id="b", segment=f"{job:016x}"
    )
    return Allocation(
        key=key, prolog_at_s=1.0, begun_s=0.0, start_s=0.0, start_wall_s=1.0, positions=(0,), uid=USER
    )


if __name__ == "__main__":
    main()
