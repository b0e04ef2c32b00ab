"""Measure the speeds of programs that share this machine's GPU: a table of pairs and triples.

    .venv/bin/python bench/colocation_gpu.py [--gpu 0] [--sharing timeslicing,mps] [--applications NAMES]
                                             [--triples 10] [--seconds 8] [--warmup 3] [--repeats 3]
                                             [--out DIR] [--device cpu] [--json]

Each program (bench/gpu_applications.py) runs in its own process, like jobs that share a GPU. The programs of
a group start together. After all programs have warmed up, the steps of each program are counted in the same
window. A speed is relative to the same program running alone in the same round. Each round measures all
programs alone, all pairs (including two instances of one program) and some triples. The order differs between
rounds, so a warming GPU slows all groups alike. The results are medians of the rounds and their range. Memory
is the maximum in use minus the memory in use before.

timeslicing   the default of a GPU: processes take turns
mps           NVIDIA's Multi-Process Service, which this benchmark starts and ends; if it is missing or not
              permitted, the reason is printed

A group that runs out of memory cannot run together (speed 0). One table for each way of sharing is written to
DIR, in the format that `bench/colocation.py --data` and `slurm-gpu colocation` read. Without a GPU it prints
"skipped: no GPU" and exits with 0. `--device cpu` measures stand-ins on the processor, for the tests only.
Needs torch (`pip install '.[train]'`), and pynvml for memory.

With --json the last line is {"gpu": …, "sharing": {WAY: {"table": …, "alone": {NAME: {"per_s": …,
"spread": …, "memory_mib": …}}, "together": [{"applications": […], "speeds": […], "spreads": […],
"memory_mib": …, "sum": …}]}}, "skipped": {WAY: why}}, or {"skipped": why}. A spread is half of the range of
the rounds, as a fraction of the median.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number, seconds
from bench.gpu_applications import CPU, CPU_SCALE, TORCH
from bench.gpu_groups import (
    GroupError,
    GroupResult,
    Memory,
    Mps,
    NotSharedError,
    Window,
    nvml_memory,
    run_together,
)
from slurm_gpu.colocation.co_runner_views import CoRunnerView, views_of
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.pair_file import write_json

WAYS = ("timeslicing", "mps")
Group = tuple[str, ...]
"""Names, sorted."""

_PROBE = """
import json, torch
if torch.cuda.is_available():
    print(json.dumps({"name": torch.cuda.get_device_name(0)}))
"""


@dataclass
class Rounds:
    """The measurements of one group."""

    per_s: list[tuple[float, ...]] = field(default_factory=list)
    """Steps per second of each, by round."""
    speeds: list[tuple[float, ...]] = field(default_factory=list)
    """Steps relative to the same round's runs alone; unclipped, so they may exceed 1."""
    memory_mib: float | None = None
    refused: bool = False
    """Whether the group ran out of memory."""
    failure: str | None = None


def main() -> None:
    """Run the benchmark."""
    options = read_options()
    gpu = "processor" if options.device == "cpu" else _gpu(options.gpu)
    if gpu is None:
        print("skipped: no GPU")
        if options.json:
            print(json.dumps({"skipped": "no GPU"}))
        return
    groups = _groups(options.applications, options.triples)
    each_s = options.seconds + options.warmup + (1 if options.device == "cpu" else 8)
    minutes = len(options.sharing) * options.repeats * len(groups) * each_s / 60
    print(f"{gpu}: {len(groups)} groups, {options.repeats} rounds, about {minutes:.0f} min")
    results: dict[str, Any] = {"gpu": gpu, "sharing": {}, "skipped": {}}
    for way in options.sharing:
        try:
            with _sharing(way, options) as environment:
                found = _measured(groups, options, environment)
        except NotSharedError as error:
            results["skipped"][way] = str(error)
            print(f"\n{way}: skipped: {error}")
            continue
        results["sharing"][way] = _report(way, gpu, found, options)
    if options.json:
        print(json.dumps(results))


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpu", type=number(0), default=0, help="Index of the GPU, as in nvidia-smi.")
    parser.add_argument("--sharing", type=_names(WAYS), help="[default: both; with --device cpu, the first]")
    parser.add_argument("--applications", type=_names((*TORCH, *CPU)), help="[default: all]")
    parser.add_argument("--triples", type=number(0), default=10, help="Number of triples, drawn at random.")
    parser.add_argument("--seconds", type=seconds(0.05), default=8.0, help="length of the window")
    parser.add_argument("--warmup", type=seconds(0), default=3.0)
    parser.add_argument("--repeats", type=number(1), default=3)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    on_cpu = options.device == "cpu"
    there = CPU if on_cpu else TORCH
    options.applications = options.applications or tuple(there)
    unknown = [name for name in options.applications if name not in there]
    if unknown:
        parser.error(f"{unknown[0]} is not among those of {options.device}: {', '.join(there)}")
    options.sharing = options.sharing or (WAYS[:1] if on_cpu else WAYS)
    if on_cpu and options.sharing != WAYS[:1]:
        parser.error("MPS requires a GPU: omit --sharing with --device cpu")
    if not options.out.is_dir():
        parser.error(f"--out {options.out} is not a directory")
    return options


def _names(known: Sequence[str]) -> Any:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        strange = [name for name in names if name not in known]
        if strange:
            there = ", ".join(dict.fromkeys(known))
            raise argparse.ArgumentTypeError(f"unknown value {strange[0]!r}; values: {there}")
        return names

    return read


def _gpu(index: int) -> str | None:
    """Return the GPU's name, or None; in a separate process, since a CUDA context takes GPU memory."""
    if not Path("/dev/nvidiactl").exists():
        return None
    asked = [sys.executable, "-c", _PROBE]
    done = subprocess.run(asked, env=_visible(index), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the GPU cannot be used: {done.stderr.strip().splitlines()[-1]}")
    return str(json.loads(done.stdout)["name"]) if done.stdout.strip() else None


def _visible(index: int) -> dict[str, str]:
    return {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(index)}


def _groups(names: Sequence[str], n_triples: int) -> list[Group]:
    alone: list[Group] = [(name,) for name in names]
    pairs: list[Group] = list(combinations_with_replacement(sorted(names), 2))
    triples: list[Group] = list(combinations_with_replacement(sorted(names), 3))
    return [*alone, *pairs, *random.Random(1).sample(triples, min(n_triples, len(triples)))]


def _sharing(way: str, options: argparse.Namespace) -> AbstractContextManager[dict[str, str]]:
    """Yield the environment for this way of sharing. Raises NotSharedError."""
    if options.device == "cpu":
        return nullcontext({**os.environ, **_one_thread()})
    environment = _visible(options.gpu) | _one_thread()
    if way == "mps":
        return Mps(environment)
    # Use a separate directory, so that the site's MPS service is not used.
    return _without_mps(environment)


@contextmanager
def _without_mps(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as empty:
        yield {**environment, "CUDA_MPS_PIPE_DIRECTORY": empty}


def _one_thread() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _measured(
    groups: Sequence[Group], options: argparse.Namespace, environment: Mapping[str, str]
) -> dict[Group, Rounds]:
    found = {group: Rounds() for group in groups}
    window = Window(options.warmup, options.seconds)
    memory: Memory = (lambda: None) if options.device == "cpu" else nvml_memory(options.gpu)
    scale = CPU_SCALE if options.device == "cpu" else 1.0
    for round_ in range(options.repeats):
        alone: dict[str, float] = {}
        single = [group for group in groups if len(group) == 1]
        several = [group for group in groups if len(group) > 1]
        random.Random(round_).shuffle(several)
        for group in (*single, *several):
            rounds = found[group]
            if rounds.refused or rounds.failure is not None:
                continue
            try:
                ran = run_together(group, options.device, scale, window, environment, memory)
            except GroupError as error:
                rounds.refused, rounds.failure = error.out_of_memory, str(error)
                print(f"{' + '.join(group)}: {error}", file=sys.stderr)
                continue
            _take(rounds, group, ran, alone)
            if sys.stderr.isatty():
                print(f"\rround {round_ + 1}: {' + '.join(group):<40}", end="", file=sys.stderr)
    return found


def _take(rounds: Rounds, group: Group, ran: GroupResult, alone: dict[str, float]) -> None:
    rounds.per_s.append(ran.per_s)
    if ran.memory_mib is not None:
        rounds.memory_mib = max(rounds.memory_mib or 0.0, ran.memory_mib)
    if len(group) == 1:
        alone[group[0]] = ran.per_s[0]
    elif all(name in alone for name in group):
        rounds.speeds.append(tuple(per_s / alone[name] for name, per_s in zip(group, ran.per_s, strict=True)))


def table_of(gpu_model: str, found: Mapping[Group, Rounds]) -> Measured:
    """Return medians, at most 1; programs that did not run alone are left out with all their groups."""
    names = [group[0] for group, rounds in found.items() if len(group) == 1 and rounds.per_s]
    index = {name: at for at, name in enumerate(names)}
    speeds: dict[CoRunnerView, list[float]] = {}
    for group, rounds in found.items():
        if len(group) == 1 or any(name not in index for name in group):
            continue
        members = [index[name] for name in group]
        if rounds.refused:
            speeds |= {view: [0.0] for view in views_of(members)}
        elif rounds.speeds:
            for view, speed in zip(views_of(members), _medians(rounds.speeds), strict=True):
                speeds.setdefault(view, []).append(min(speed, 1.0))
    alone = tuple(statistics.median(one[0] for one in found[(name,)].per_s) for name in names)
    means = {view: statistics.fmean(some) for view, some in speeds.items()}
    return Measured(gpu_model, tuple(names), alone, means)


def _medians(rounds: Sequence[tuple[float, ...]]) -> list[float]:
    return [statistics.median(values) for values in zip(*rounds, strict=True)]


def _spreads(rounds: Sequence[tuple[float, ...]]) -> list[float]:
    """Return half of the range of the rounds, relative to the median."""
    return [
        (max(values) - min(values)) / 2 / median if (median := statistics.median(values)) > 0 else 0.0
        for values in zip(*rounds, strict=True)
    ]


def _report(way: str, gpu: str, found: Mapping[Group, Rounds], options: argparse.Namespace) -> dict[str, Any]:
    table = table_of(gpu if way == "timeslicing" else f"{gpu} (MPS)", found)
    if not table.names:
        sys.exit(f"{way}: no program ran alone; the first error: {next(iter(found.values())).failure}")
    path = options.out / f"{way}.json"
    write_json(path, table)
    print(f"\n{way}: {path}\n{'together':<36}{'speeds':<26}{'spread':<12}{'sum':>6}{'memory':>12}")
    alone, together = {}, []
    for group, rounds in found.items():
        memory = "–" if rounds.memory_mib is None else f"{rounds.memory_mib:.0f} MiB"
        if len(group) == 1 and rounds.per_s:
            per_s, spread = _medians(rounds.per_s)[0], _spreads(rounds.per_s)[0]
            alone[group[0]] = {"per_s": per_s, "spread": spread, "memory_mib": rounds.memory_mib}
            print(f"{group[0]:<36}{f'{per_s:.1f} steps/s':<26}{f'±{spread:.1%}':<12}{1:>6.2f}{memory:>12}")
        elif len(group) > 1:
            speeds = [0.0] * len(group) if rounds.refused else _medians(rounds.speeds)
            spreads = _spreads(rounds.speeds)
            together.append(
                {
                    "applications": list(group),
                    "speeds": speeds,
                    "spreads": spreads,
                    "memory_mib": rounds.memory_mib,
                    "sum": sum(speeds),
                }
            )
            text = " ".join(f"{speed:.2f}" for speed in speeds) or (rounds.failure or "not measured")[:24]
            apart = f"±{max(spreads):.1%}" if spreads else ""
            print(f"{' + '.join(group):<36}{text:<26}{apart:<12}{sum(speeds):>6.2f}{memory:>12}")
    return {"table": str(path), "alone": alone, "together": together}


if __name__ == "__main__":
    main()
