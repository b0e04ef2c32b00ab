"""simgpu: simulate work, by a schedule, on the GPUs that a CUDA program would see.

The process registers itself in the node's world, waits, and ends; the simulated NVML reports its load.
SIMGPU_WORLD, or SLURM_GPU_LAB_DIR and SLURMD_NODENAME, determine the path of the world. SIMGPU_DEVICES is the
directory of the node's device files (/dev/slurm-gpu-lab/$SLURMD_NODENAME).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .devices import openable, selected, visible
from .errors import RequestError, WorldError
from .load import FULL, USUAL, Activity, Point
from .schedule import (
    PROFILES,
    Phase,
    from_profile,
    parse_activity,
    parse_phases,
    parse_ramp,
    parse_seconds,
    stretches,
    to_points,
)
from .sharing import LOOK_S, OUT_OF_MEMORY, Course, SpeedTable, Work, Worker
from .truth import ProcessTruth, default_directory, job_of_environment, lab_directory
from .world import Device, World

DONE, NO_MEMORY, WRONG_USAGE, FAILED = 0, 1, 2, 3

_DEFAULT_SECONDS = "10"
# Time from the creation of a schedule to its start, so that readers find it in time even on a busy host.
_LEAD_NS = 100_000_000
# Time for which a stretch is visible before it begins. If all stretches were visible from the start, they
# would fill the world.
_AHEAD_NS = 10_000_000_000
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class _Plan(NamedTuple):
    phases: list[Phase]
    activity: Activity
    mps: bool
    # The start time; None to start as soon as readers can find the schedule.
    start_ns: int | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; a signal that ends the work ends the process, too."""
    options = _parser().parse_args(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        activity = parse_activity(options.activity)
        plan = _Plan(_phases(options, activity), activity, options.mps, _start_ns(options.at))
        work = _work(options, plan)
        world = World(_world_path())
        devices = selected(_seen(world), options.gpus)
        _check_memory(plan.phases, devices)
        if work is not None:
            return _end_as(_do(world, devices, work))
        stopped_by = _run(world, devices, plan)
    except RequestError as error:
        print(f"simgpu: {error}", file=sys.stderr)
        return WRONG_USAGE
    except (WorldError, OSError) as error:
        print(f"simgpu: {error}", file=sys.stderr)
        return FAILED
    return _end_as(stopped_by)


def _end_as(how: signal.Signals | int | None) -> int:
    """Return the exit status; a signal that ended the work ends the process."""
    if isinstance(how, signal.Signals):
        signal.signal(how, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        os.kill(os.getpid(), how)
    return DONE if how is None else how


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simgpu",
        description="Simulated work on the GPUs that CUDA would see here.",
        epilog="profiles: " + "; ".join(f"{name} ({profile.about})" for name, profile in PROFILES.items()),
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--util", metavar="PCT", help="utilisation: 40, or 10:90 for a ramp (default 0)")
    what.add_argument(
        "--phases", metavar="LIST", help="such as 'util=80,mem=4000,s=5; util=10:0,mem=4000,s=3', or @FILE"
    )
    what.add_argument("--profile", metavar="NAME", help="a built-in application, see below")
    parser.add_argument(
        "--mem-mib", metavar="MIB", help="memory on each GPU, such as 5000 or 100:5000 (default 0)"
    )
    parser.add_argument("--seconds", metavar="S", help=f"duration (default {_DEFAULT_SECONDS})")
    parser.add_argument("--at", metavar="EPOCH", help="start time, common to the ranks of a job")
    parser.add_argument(
        "--activity",
        metavar="LIST",
        default="",
        help="GPM metrics as factors of the utilisation, by default "
        + ",".join(f"{name}={factor:g}" for name, factor in USUAL._asdict().items()),
    )
    parser.add_argument(
        "--application",
        metavar="NAME",
        help="work that takes --seconds alone, and longer with co-runners on the same GPU that have a NAME",
    )
    parser.add_argument(
        "--speeds",
        metavar="FILE",
        help='JSON, speeds with one co-runner, such as {"bert": {"resnet50": 0.8}} (default $SIMGPU_SPEEDS)',
    )
    parser.add_argument("--mps", action="store_true", help="as a client of the Multi-Process Service")
    parser.add_argument("--gpus", metavar="LIST", default="all", help="CUDA ordinals: 0,1 (default all)")
    return parser


def _phases(options: argparse.Namespace, activity: Activity) -> list[Phase]:
    if options.phases is not None:
        if options.seconds is not None or options.mem_mib is not None:
            raise RequestError("--phases: contains seconds and memory; omit --seconds and --mem-mib")
        return parse_phases(_text(options.phases), activity)
    seconds = parse_seconds(_DEFAULT_SECONDS if options.seconds is None else options.seconds, "--seconds")
    if options.profile is not None:
        if options.mem_mib is not None:
            raise RequestError("--profile: contains the memory; omit --mem-mib")
        return [replace(phase, activity=activity) for phase in from_profile(options.profile, seconds)]
    util = parse_ramp("0" if options.util is None else options.util, "--util", highest=100)
    memory = parse_ramp("0" if options.mem_mib is None else options.mem_mib, "--mem-mib")
    return [Phase(seconds, util, memory, activity)]


def _text(phases: str) -> str:
    return Path(phases[1:]).read_text() if phases.startswith("@") else phases


def _start_ns(at: str | None) -> int | None:
    if at is None:
        return None
    if not re.fullmatch(r"\d{9,10}(?:\.\d*)?", at):
        raise RequestError(f"--at {at!r}: must be seconds since 1970, such as 1790000000.5")
    start_ns = round(float(at) * 1e9)
    late_s = (time.time_ns() - start_ns) / 1e9
    if late_s > 0:
        raise RequestError(f"--at {at}: was {late_s:.1f} s ago; write a future time")
    return start_ns


def _work(options: argparse.Namespace, plan: _Plan) -> Work | None:
    if options.application is None:
        if options.speeds is not None:
            raise RequestError("--speeds: has no effect without --application")
        return None
    path = options.speeds or os.environ.get("SIMGPU_SPEEDS")
    if path is None:
        raise RequestError("--application: requires a file of speeds in --speeds or SIMGPU_SPEEDS")
    if plan.start_ns is not None:
        raise RequestError("--at: is not possible with --application, whose end depends on co-runners")
    if any((phase.activity, phase.footprint) != (plan.activity, FULL) for phase in plan.phases):
        raise RequestError("--application: phases cannot have their own activity or footprint")
    return Work(options.application, tuple(plan.phases), SpeedTable.read(Path(path)), plan.activity, plan.mps)


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME", os.uname().nodename)


def _world_path() -> Path:
    path = os.environ.get("SIMGPU_WORLD")
    return lab_directory() / "nodes" / _node() / "gpus.world" if path is None else Path(path)


def _seen(world: World) -> list[Device]:
    directory = os.environ.get("SIMGPU_DEVICES", f"/dev/slurm-gpu-lab/{_node()}")
    cuda = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = visible(openable(world.computing, Path(directory)), cuda)
    if not seen:
        raise WorldError(
            f"no CUDA-capable device is visible (CUDA_VISIBLE_DEVICES={cuda}, devices in {directory})"
        )
    return seen


def _check_memory(phases: Sequence[Phase], devices: Sequence[Device]) -> None:
    wanted = max(max(phase.memory_mib) for phase in phases)
    for device in devices:
        free = device.memory_mib - device.reserved_mib
        if wanted > free:
            raise RequestError(f"out of memory: {wanted:g} MiB requested, {device.uuid} has {free}")


def _do(world: World, devices: Sequence[Device], work: Work) -> signal.Signals | int | None:
    """Do the work; return None once it is done, the signal that interrupted it, or an exit status."""
    if len(devices) != 1:
        raise RequestError(f"--application: works on one GPU, and {len(devices)} are visible; see --gpus")
    (device,) = devices
    worker = Worker(
        world,
        device,
        work,
        os.getpid(),
        _LEAD_NS,
        lambda points: _truth(device, points, work.phases[0]),
        lambda truth: _write([truth]),
    )
    job_id, restart = job_of_environment(dict(os.environ))
    course = Course(
        job_id=job_id,
        restart=restart,
        application=work.application,
        alone_s=work.seconds,
        uuid=device.uuid,
        pid=os.getpid(),
        began_s=worker.stretches[0][0],
        stretches=worker.stretches,
    )
    _write([course])
    while True:
        received = signal.sigtimedwait(_ENDING, min(LOOK_S, worker.left_s()))
        how = worker.turn() if received is None else signal.Signals(received.si_signo).name
        if received is not None:
            worker.end(time.time_ns(), str(how))
        if how is not None:
            course.ended_s, course.ended_by = worker.ended_ns / 1e9, how
            _write([course])
            if how == OUT_OF_MEMORY:
                print(f"simgpu: {OUT_OF_MEMORY}: {device.uuid} has no more memory", file=sys.stderr)
                return NO_MEMORY
            return None if received is None else signal.Signals(received.si_signo)


def _run(world: World, devices: Sequence[Device], work: _Plan) -> signal.Signals | None:
    """Follow the schedule; return None at its end, or the first signal that arrives earlier."""
    begun: dict[int, ProcessTruth] = {}
    ahead = stretches(work.phases)
    next_ns = work.start_ns
    while True:
        while ahead and (next_ns is None or next_ns - time.time_ns() <= _AHEAD_NS):
            phases = ahead.pop(0)
            slots, points = _begin(world, devices, phases, next_ns, mps=work.mps)
            new = {
                slot: _truth(device, points, phases[0]) for slot, device in zip(slots, devices, strict=True)
            }
            _write(list(new.values()))
            begun |= new
            next_ns = points[-1].time_ns
        # End each slot on time: some time later, another process may reuse the slot, and this process must
        # then leave it unchanged.
        moments = [truth.points[-1].time_ns for truth in begun.values()]
        if ahead and next_ns is not None:
            moments.append(next_ns - _AHEAD_NS)
        received = signal.sigtimedwait(_ENDING, max(0.0, (min(moments) - time.time_ns()) / 1e9))
        stopped_by = None if received is None else signal.Signals(received.si_signo)
        begun = _end(world, begun, time.time_ns(), stopped_by)
        if stopped_by is not None or not (begun or ahead):
            return stopped_by


def _end(
    world: World, begun: dict[int, ProcessTruth], now_ns: int, stopped_by: signal.Signals | None
) -> dict[int, ProcessTruth]:
    """End the processes whose schedule is over, or all after a signal; return the others."""
    left: dict[int, ProcessTruth] = {}
    for slot, truth in begun.items():
        last_ns = truth.points[-1].time_ns
        if last_ns <= now_ns or stopped_by is not None:
            end_ns = min(last_ns, now_ns)
            world.end(slot, end_ns)
            ended_by = "schedule" if stopped_by is None or last_ns <= now_ns else stopped_by.name
            _write([replace(truth, end_ns=end_ns, ended_by=ended_by)])
        else:
            left[slot] = truth
    return left


def _begin(
    world: World, devices: Sequence[Device], phases: Sequence[Phase], start_ns: int | None, *, mps: bool
) -> tuple[list[int], tuple[Point, ...]]:
    """Begin a stretch at `start_ns` or, if that is None, as soon as readers can find the stretch."""
    return world.begin(
        [device.target for device in devices],
        lambda: to_points(phases, time.time_ns() + _LEAD_NS if start_ns is None else start_ns),
        os.getpid(),
        activity=phases[0].activity,
        footprint=phases[0].footprint,
        mps=mps,
    )


def _truth(device: Device, points: tuple[Point, ...], how: Phase) -> ProcessTruth:
    job_id, restart = job_of_environment(dict(os.environ))
    return ProcessTruth(
        job_id=job_id,
        restart=restart,
        node=_node(),
        uuid=device.uuid,
        memory_mib=device.memory_mib,
        pid=os.getpid(),
        points=points,
        activity=how.activity,
        footprint=how.footprint,
    )


def _write(truths: Sequence[ProcessTruth | Course]) -> None:
    directory = default_directory()
    if directory.is_dir():
        for truth in truths:
            truth.write(directory)
