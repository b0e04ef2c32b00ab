"""Slurm's number of a GPU → its device files → its minor number and MIG instance → its UUID.

SLURM_JOB_GPUS counts the `Name=gpu` lines in the order of `slurmd -G`, which is neither the minor number
nor NVML's index: gres.conf may list files in any order, and AutoDetect has an order of its own. A line with
`Count=1` and several files is one position (MultipleFiles, which MIG instances are); else each file is one.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.clock import Clock
from slurm_gpu.errors import SlurmError
from slurm_gpu.node.allocation.dynamic_node import PROC, DynamicNode
from slurm_gpu.node.allocation.file_changes import ChangeStamp
from slurm_gpu.node.allocation.slurmd import CACHED_CONF, CONF, RunSlurmd, SlurmdQuestion, run_slurmd
from slurm_gpu.node.gpu.reading import DeviceProperties
from slurm_gpu.node.worker_thread import WorkThread

log = logging.getLogger(__name__)

MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
MIG_MINORS_VARIABLE = "SLURM_GPU_MIG_MINORS"
"""In the environment: the file to read instead, where several nodes share a host."""

_MIG_LINE = re.compile(r"gpu(?P<gpu>\d+)/gi(?P<gi>\d+)/(?:ci(?P<ci>\d+)/)?access (?P<minor>\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Capability:
    """An instance on the GPU with that minor number; `compute_instance` None: the GPU instance as such."""

    gpu: int
    gpu_instance: int
    compute_instance: int | None


def read_capabilities(path: Path = MIG_MINORS) -> Mapping[int, Capability]:
    """Which MIG instance a capability's device file opens, by minor number; empty without MIG.

    A job that may use an instance may open its GPU's file and two of /dev/nvidia-caps/nvidia-capN: that of
    the GPU instance, and that of the compute instance in it. The driver lists them in lines such as
    `gpu0/gi1/access 12` and `gpu0/gi1/ci0/access 13`, where gpu0 counts by minor number. Slurm reads the same
    file (src/plugins/gpu/nvml/gpu_nvml.c, _handle_mig).
    """
    try:
        text = path.read_text("ascii", "replace")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        if match := _MIG_LINE.fullmatch(line.strip()):
            ci = None if match["ci"] is None else int(match["ci"])
            found[int(match["minor"])] = Capability(int(match["gpu"]), int(match["gi"]), ci)
    return found


# What is printed after Count and File differs by version (src/interfaces/gres.c, _log_gres_slurmd_conf).
_LINE = re.compile(r"\bGres Name=gpu\b.*?\bCount=(?P<count>\d+)\b.*?\bFile=(?P<files>\S+)")
_COUNT = re.compile(r"\bGres Name=gpu\b.*?\bCount=(?P<count>\d+)\b")
_SHARES = re.compile(r"\bGres Name=(?:shard|mps)\b.*?\bCount=[1-9]")
_TRAILING_NUMBER = re.compile(r"(\d+)$")
_RANGE = r"\d{1,5}(?:-\d{1,5})?"
_BRACKETS = re.compile(rf"\[({_RANGE}(?:,{_RANGE})*)\]", re.ASCII)
_OUTER_COMMA = re.compile(r",(?![^\[]*\])")
_CAPABILITY = re.compile(r"nvidia-cap\d+$")
_GPU = re.compile(r"nvidia\d+$")
WAIT_S = 2.0
"""What slurmd is given to answer at the start, before its first job."""


def parse_files(text: str) -> list[tuple[str, ...]]:
    """Device files by position, from the output of `slurmd -G`; several are one MIG instance's."""
    found: list[tuple[str, ...]] = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is None or match["files"] == "(null)":
            continue
        files = tuple(itertools.chain.from_iterable(map(_expand, _OUTER_COMMA.split(match["files"]))))
        found.extend([files] if match["count"] == "1" else [(file,) for file in files])
    return found


def _count_without_files(text: str) -> int:
    """How many GPUs it tells of, where it names no device file of any."""
    return sum(int(match["count"]) for match in map(_COUNT.search, text.splitlines()) if match)


def _expand(name: str) -> Iterator[str]:
    """Names in "/dev/nvidia[0-2,5]"."""
    head, brackets, rest = name.partition("[")
    match = _BRACKETS.match(brackets + rest)
    if match is None:
        yield name
        return
    tail = rest[match.end() - 1 :]
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from (f"{head}{number:0{len(first)}d}{more}" for more in _expand(tail))


def minor_of(file: str) -> int | None:
    """The minor number of a device file; by its name where there is no such device here."""
    try:
        status = Path(file).stat()
    except OSError:
        status = None
    if status is not None and stat.S_ISCHR(status.st_mode):
        return os.minor(status.st_rdev)
    match = _TRAILING_NUMBER.search(file)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class DevicePosition:
    """A GPU by its minor number, and the MIG instance on it if `gpu_instance` says so.

    Without `compute_instance` it is the one that the GPU instance has, if it has only one.
    """

    minor: int
    gpu_instance: int | None = None
    compute_instance: int | None = None

    def is_at(self, facts: DeviceProperties) -> bool:
        """Can it be that device?"""
        return (
            facts.minor == self.minor
            and facts.gpu_instance == self.gpu_instance
            and self.compute_instance in (None, facts.compute_instance)
        )


def place_of(files: Sequence[str], capabilities: Mapping[int, Capability]) -> DevicePosition | None:
    """What these device files of one position open; None where that cannot be told."""
    caps = [file for file in files if _CAPABILITY.search(file)]
    gpus = [file for file in files if file not in caps]
    # A GPU may come with other files, such as those of its display.
    named = [file for file in gpus if _GPU.search(file)]
    minors = {minor_of(file) for file in (named or gpus)}
    if len(minors) != 1 or None in minors:
        return None
    (minor,) = (m for m in minors if m is not None)
    if not caps:
        return DevicePosition(minor)
    known = [None if number is None else capabilities.get(number) for number in map(minor_of, caps)]
    opened = [capability for capability in known if capability is not None]
    instances = {capability.gpu_instance for capability in opened}
    inner = {c.compute_instance for c in opened if c.compute_instance is not None}
    if len(opened) < len(caps) or len(instances) != 1 or len(inner) > 1 or {c.gpu for c in opened} != {minor}:
        return None
    return DevicePosition(minor, *instances, *inner)


class GresOrder:
    """Which UUID each position is; asks slurmd anew when its configuration or the devices have changed.

    It never waits for slurmd but in `ask`: until there is an answer no device is told. Files that cannot be
    looked at are as before. `can_be_shared` tells whether several jobs may hold one GPU (`shard`, `mps`).
    """

    def __init__(
        self,
        node: str | None,
        clock: Clock,
        *,
        run: RunSlurmd | None = None,
        environ: Mapping[str, str] = os.environ,
        mig_minors: Path | None = None,
        worker: WorkThread | None = None,
        file_worker: WorkThread | None = None,
        wake: Callable[[], None] = lambda: None,
        wait_s: float = WAIT_S,
        proc: Path = PROC,
    ) -> None:
        command = ("slurmd", "-G", *(("-N", node) if node is not None else ()))
        dynamic = DynamicNode(node, proc)
        run = functools.partial(run_slurmd, ends_within_s=None) if run is None else run

        def run_as_the_node(command: Sequence[str]) -> str:
            return run((*command, *dynamic.options()))

        self._question = SlurmdQuestion(command, clock, run_as_the_node, worker, wake)
        self._told = " ".join(command)
        self._wait_s = wait_s
        self._mig_minors = mig_minors or Path(environ.get(MIG_MINORS_VARIABLE, MIG_MINORS))
        directories = [CONF.parent, CACHED_CONF.parent]
        if environ.get("SLURM_CONF"):
            directories = [Path(environ["SLURM_CONF"]).parent]
        watched = [d / name for d in directories for name in ("slurm.conf", "gres.conf")]
        self._files = ChangeStamp(watched, file_worker, dynamic.n_changes)
        self._stamp: object = None
        self._present: frozenset[DevicePosition] = frozenset()
        # Changes are counted: an answer is to a question of before or after the last one.
        self._changes = self._asked_at_change = self._answered_at_change = 0
        self._asked_of: frozenset[int] = frozenset()
        # Positions beyond those in the last answer, of which slurmd has been asked since.
        self._nowhere: frozenset[int] = frozenset()
        self._places: Sequence[DevicePosition | None] = ()
        self._n_positions = 0
        self._complained = self._has_news = False
        self.assumed = False
        self.can_be_shared = False

    @property
    def is_asking(self) -> bool:
        """Is an answer on its way?"""
        return self._question.is_open

    @property
    def is_silent(self) -> bool:
        """Was slurmd asked in vain, as far as can be told by now?"""
        return self._question.is_silent

    def ask(self) -> None:
        """Ask slurmd now, and give it a moment to answer."""
        self.uuids((), ())
        self._question.wait(self._wait_s)
        self._hear()

    def news(self) -> bool:
        """Has slurmd answered since the last call?"""
        self._hear()
        news, self._has_news = self._has_news, False
        return news

    def uuids(self, positions: Sequence[int], devices: Sequence[DeviceProperties]) -> Mapping[int, str]:
        """The UUID at each position; a position is absent where no device of `devices` can be told.

        While slurmd has not answered none can: a guess might charge another job's GPU. Where it answers but
        names no device files, the order is that of the minor numbers, and `assumed` is set; MIG instances
        have no such order.
        """
        self._notice(devices)
        self._hear()
        if not self._is_known(positions) or self._beyond(positions):
            self._ask_of(self._beyond(positions))
            self._hear()
        if not self._is_known(positions):
            self._complain_of_silence()
            return {}
        self.assumed = False
        if self._places:
            places = self._places
        elif any(facts.parent is not None for facts in devices):
            return {}
        else:
            self.assumed = True
            places = [
                DevicePosition(minor) for minor in sorted(f.minor for f in devices if f.minor is not None)
            ]
        found = {}
        for position in positions:
            place = places[position] if position < len(places) else None
            here = [] if place is None else [facts.uuid for facts in devices if place.is_at(facts)]
            if len(here) == 1:
                found[position] = here[0]
        return found

    def _notice(self, devices: Sequence[DeviceProperties]) -> None:
        stamp = self._files.now()
        present = frozenset(
            DevicePosition(facts.minor, facts.gpu_instance, facts.compute_instance)
            for facts in devices
            if facts.minor is not None
        )
        # That the driver answers at last is no change.
        if stamp != self._stamp or (self._present and present and present != self._present):
            self._changes += 1
            self._nowhere = frozenset()
            self._question.at_once()
        self._stamp, self._present = stamp, present or self._present

    def _beyond(self, positions: Iterable[int]) -> frozenset[int]:
        """Slurm hands out what slurmd did not tell of: it may by now."""
        return frozenset(position for position in positions if position >= self._n_positions)

    def _is_known(self, positions: Iterable[int]) -> bool:
        """Is the last answer about things as they are now?"""
        return self._answered_at_change == self._changes and self._beyond(positions) <= self._nowhere

    def _ask_of(self, beyond: frozenset[int]) -> None:
        if self._question.ask():
            self._asked_at_change, self._asked_of = self._changes, beyond

    def _hear(self) -> None:
        try:
            text = self._question.answer()
        except SlurmError as error:
            self._answered_at_change = -1
            self._question.no_use()
            self._complain(str(error))
            return
        if text is None:
            return
        self._complained, self._has_news = False, True
        self._answered_at_change = self._asked_at_change
        self.can_be_shared = _SHARES.search(text) is not None
        files = parse_files(text)
        capabilities = read_capabilities(self._mig_minors) if any(len(f) > 1 for f in files) else {}
        self._places = [place_of(of_position, capabilities) for of_position in files]
        self._n_positions = len(files) or _count_without_files(text)
        self._nowhere = self._beyond(self._nowhere | self._asked_of)
        if self._nowhere:
            self._question.no_use()
        else:
            self._question.at_once()

    def _complain_of_silence(self) -> None:
        if self._question.is_silent:
            self._complain(f"{self._told}: no answer for {self._question.silent_s:.0f} s")

    def _complain(self, what: str) -> None:
        if not self._complained:
            log.warning("%s; GPUs cannot be told from each other until it answers", what)
        self._complained = True
