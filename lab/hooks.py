"""Prolog and epilog of the lab: the hooks of slurm-gpu, and independent timestamps for tests."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from lab import clocks
from lab.layout import INSTALLED_VARIABLE, REPOSITORY, Layout

EVENTS = ("prolog", "epilog")
_HOOK = "10-slurm-gpu"
_INSTALLED = Path("/usr/libexec/slurm-gpu/hooks")
_NOTIFIED = "-notified"
_NODE = "$SLURMD_NODENAME"


@dataclass(frozen=True)
class AllocatedInterval:
    """One interval in which GPUs of a node were allocated to a job, as recorded by the lab's own hooks."""

    node: str
    restart: int
    # The positions in SLURM_JOB_GPUS; empty for a job without GPUs.
    positions: tuple[int, ...]
    start_s: float
    end_s: float | None
    # The total duration of slurm-gpu's two hooks: the exact time at which each hook records its event is
    # unknown.
    unsure_s: float = 0.0


def install(layout: Layout, *, ours: bool, own_clocks: bool = False) -> None:
    """Write the scripts to the directories that Prolog= and Epilog= in slurm.conf specify."""
    layout.stamps.mkdir(exist_ok=True)
    layout.truth.mkdir(exist_ok=True)
    layout.truth.chmod(0o1777)
    for event in EVENTS:
        directory = layout.etc / f"{event}.d"
        directory.mkdir(exist_ok=True)
        hook = _INSTALLED / event if INSTALLED_VARIABLE in os.environ else REPOSITORY / event / _HOOK
        script = _script(layout, event, hook if ours and hook.exists() else None, own_clocks=own_clocks)
        _executable(directory / _HOOK, script)


def _script(layout: Layout, event: str, hook: Path | None, *, own_clocks: bool) -> str:
    """Return a script that writes a timestamp before and after the hook of slurm-gpu.

    The script and the hook share one shell, since an exec takes 100 ms on a busy host.
    """
    script = f"""\
#!/bin/sh
stamp() {{
    read -r uptime _ </proc/uptime
    echo "$1" "$uptime" "${{SLURM_JOB_RESTART_COUNT:-0}}" "$SLURM_JOB_GPUS" \\
        >>{layout.stamps}/$SLURM_JOB_ID.$SLURMD_NODENAME
}}
stamp {event}
"""
    if hook is None:
        return f"{script}exit 0\n"
    variables = clocks.environment(layout, _NODE) if own_clocks else {}
    clock = "".join(f'export {name}="{value}"\n' for name, value in variables.items())
    return f"""\
{script}# All nodes share this host, so each has its own run directory and, with own_clocks, its own clock.
export SLURM_GPU_RUN_DIR="{layout.node(_NODE).run}"
{clock}(. {hook})
stamp {event}{_NOTIFIED}
exit 0
"""


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def intervals(layout: Layout, job_id: int) -> list[AllocatedInterval]:
    """Return the intervals in which raw job ``job_id`` had its allocation, sorted by node and time.

    A requeued job has one interval per run and node. An epilog closes the open interval regardless of the
    restart count, since Slurm sets it to 1 in the epilog of run 0.
    """
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found: list[AllocatedInterval] = []
    for path in sorted(layout.stamps.glob(f"{job_id}.*")):
        node = path.name.partition(".")[2]
        of_node: list[AllocatedInterval] = []
        began_s = 0.0
        for line in path.read_text().splitlines():
            event, at, restart, *gpus = line.split(" ")
            at_s = boot_s + float(at)
            last = of_node[-1] if of_node else None
            if event == "prolog":
                if last is not None and last.end_s is None:
                    of_node.pop()
                positions = tuple(int(item) for item in "".join(gpus).split(",") if item)
                of_node.append(AllocatedInterval(node, int(restart), positions, at_s, None))
            elif last is not None and event.endswith(_NOTIFIED):
                of_node[-1] = replace(last, unsure_s=last.unsure_s + at_s - began_s)
            elif last is not None and last.end_s is None:
                of_node[-1] = replace(last, end_s=at_s)
            began_s = at_s
        found.extend(of_node)
    return found
