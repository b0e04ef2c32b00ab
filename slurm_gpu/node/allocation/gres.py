"""Map Slurm's GPU numbers to device files, to minor numbers and MIG instances, and to UUIDs.

SLURM_JOB_GPUS contains positions in the order of the `Name=gpu` lines that `slurmd -G` prints. Positions
are neither minor numbers nor NVML indices: gres.conf can list files in any order, and AutoDetect uses its own
order. A line with `Count=1` and several files (MultipleFiles, as for MIG instances) describes one position;
on other lines, each file is one position.
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
from slurm_gpu.node.allocation.slurmd import CACHED_CONF, CONF, RunSlurmd, SlurmdQuery, run_slurmd
from slurm_gpu.node.gpu.reading import DeviceProperties
from slurm_gpu.node.worker_thread import WorkerThread

log = logging.getLogger(__name__)

MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
# The environment variable with the path of a file to read instead, if several nodes share a host.
MIG_MINORS_VARIABLE = "SLURM_GPU_MIG_MINORS"

_MIG_LINE = re.compile(r"gpu(?P<gpu>\d+)/gi(?P<gi>\d+)/(?:ci(?P<ci>\d+)/)?access (?P<minor>\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Capability:
    """A GPU instance, or one of its compute instances, on the GPU with minor number `gpu`."""

    gpu: int
    gpu_instance: int
    compute_instance: int | None


def read_capabilities(path: Path = MIG_MINORS) -> Mapping[int, Capability]:
    """Map minor numbers of capability device files to MIG instances; return {} if there are none.

    A job with a MIG instance can open the GPU's device file and two files /dev/nvidia-caps/nvidia-capN: one
    for the GPU instance and one for the compute instance. The driver lists them in lines such as
    `gpu0/gi1/access 12` and `gpu0/gi1/ci0/access 13`, where gpu0 is a minor number. Slurm reads the same file
    (src/plugins/gpu/nvml/gpu_nvml.c, _handle_mig).
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


# The text after Count and File differs by version (src/interfaces/gres.c, _log_gres_slurmd_conf).
_LINE = re.compile(r"\bGres Name=gpu\b.*?\bCount=(?P<count>\d+)\b.*?\bFile=(?P<files>\S+)")
_COUNT = re.compile(r"\bGres Name=gpu\b.*?\bCount=(?P<count>\d+)\b")
_SHARES = re.compile(r"\bGres Name=(?:shard|mps)\b.*?\bCount=[1-9]")
_TRAILING_NUMBER = re.compile(r"(\d+)$")
_RANGE = r"\d{1,5}(?:-\d{1,5})?"
_BRACKETS = re.compile(rf"\[({_RANGE}(?:,{_RANGE})*)\]", re.ASCII)
_OUTER_COMMA = re.compile(r",(?![^\[]*\])")
_CAPABILITY = re.compile(r"nvidia-cap\d+$")
_GPU = re.compile(r"nvidia\d+$")
# Maximum wait for slurmd when slurm-gpud starts, before the first job.
WAIT_S = 2.0


def parse_files(text: str) -> list[tuple[str, ...]]:
    """Return the device files of each position in the output of `slurmd -G`; a MIG instance has several."""
    found: list[tuple[str, ...]] = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is None or match["files"] == "(null)":
            continue
        files = tuple(itertools.chain.from_iterable(map(_expand, _OUTER_COMMA.split(match["files"]))))
        found.extend([files] if match["count"] == "1" else [(file,) for file in files])
    return found


def _count_without_files(text: str) -> int:
    """Return the number of GPUs in the output of `slurmd -G` if the output contains no device files."""
    return sum(int(match["count"]) for match in map(_COUNT.search, text.splitlines()) if match)


def _expand(name: str) -> Iterator[str]:
    """Expand names such as "/dev/nvidia[0-2,5]"."""
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
    """Return a device file's minor number, or the number in its name if the file does not exist here."""
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
    """A GPU, given by its minor number, or a MIG instance on that GPU if `gpu_instance` is set.

    If `compute_instance` is None, the GPU instance has only one compute instance.
    """

    minor: int
    gpu_instance: int | None = None
    compute_instance: int | None = None

    def is_at(self, facts: DeviceProperties) -> bool:
        """Return whether the given device is at this position."""
        return (
            facts.minor == self.minor
            and facts.gpu_instance == self.gpu_instance
            and self.compute_instance in (None, facts.compute_instance)
        )


def place_of(files: Sequence[str], capabilities: Mapping[int, Capability]) -> DevicePosition | None:
    """Return the device to which the files of one position give access, or None if that is ambiguous."""
    caps = [file for file in files if _CAPABILITY.search(file)]
    gpus = [file for file in files if file not in caps]
    # A GPU may have other files, such as those of its display.
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
    """Resolves positions to UUIDs; runs `slurmd -G` again when its configuration or the devices change.

    Only `ask` waits for slurmd; until slurmd answers, no position is resolved. Configuration files on a file
    system that hangs count as unchanged. `can_be_shared` is true if Slurm can allocate one GPU to several
    jobs (`shard` or `mps`).
    """

    def __init__(
        self,
        node: str | None,
        clock: Clock,
        *,
        run: RunSlurmd | None = None,
        environ: Mapping[str, str] = os.environ,
        mig_minors: Path | None = None,
        worker: WorkerThread | None = None,
        file_worker: WorkerThread | None = None,
        wake: Callable[[], None] = lambda: None,
        wait_s: float = WAIT_S,
        proc: Path = PROC,
    ) -> None:
        command = ("slurmd", "-G", *(("-N", node) if node is not None else ()))
        dynamic = DynamicNode(node, proc)
        run = functools.partial(run_slurmd, ends_within_s=None) if run is None else run

        def run_as_the_node(command: Sequence[str]) -> str:
            return run((*command, *dynamic.options()))

        self._query = SlurmdQuery(command, clock, run_as_the_node, worker, wake)
        self._command_text = " ".join(command)
        self._wait_s = wait_s
        self._mig_minors = mig_minors or Path(environ.get(MIG_MINORS_VARIABLE, MIG_MINORS))
        directories = [CONF.parent, CACHED_CONF.parent]
        if environ.get("SLURM_CONF"):
            directories = [Path(environ["SLURM_CONF"]).parent]
        watched = [d / name for d in directories for name in ("slurm.conf", "gres.conf")]
        self._files = ChangeStamp(watched, file_worker, dynamic.n_changes)
        self._stamp: object = None
        self._present: frozenset[DevicePosition] = frozenset()
        # Changes are numbered, so that answers to queries made before the last change can be discarded.
        self._changes = self._asked_at_change = self._answered_at_change = 0
        self._asked_of: frozenset[int] = frozenset()
        # Positions that slurmd did not report although it was queried for them.
        self._nowhere: frozenset[int] = frozenset()
        self._places: Sequence[DevicePosition | None] = ()
        self._n_positions = 0
        self._has_warned = self._has_news = False
        self.assumed = False
        self.can_be_shared = False

    @property
    def is_asking(self) -> bool:
        """Return whether a query is running."""
        return self._query.is_open

    @property
    def is_silent(self) -> bool:
        """Return whether the last query failed or the current one is taking too long."""
        return self._query.is_silent

    def ask(self) -> None:
        """Query slurmd now and wait briefly for the answer."""
        self.uuids((), ())
        self._query.wait(self._wait_s)
        self._receive()

    def news(self) -> bool:
        """Return whether slurmd has answered since the last call."""
        self._receive()
        news, self._has_news = self._has_news, False
        return news

    def uuids(self, positions: Sequence[int], devices: Sequence[DeviceProperties]) -> Mapping[int, str]:
        """Return UUIDs by position; positions without a match in `devices` are absent.

        Until slurmd answers, no position is resolved, because a guess might attribute a GPU to the wrong job.
        If the answer contains no device files, positions are assumed to follow minor numbers, and `assumed`
        is true. In this case, no position is resolved on a node with MIG instances, because they have no such
        order.
        """
        self._notice(devices)
        self._receive()
        if not self._is_known(positions) or self._unreported(positions):
            self._ask_of(self._unreported(positions))
            self._receive()
        if not self._is_known(positions):
            self._warn_of_silence()
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
        # The first answer from the driver is not a change.
        if stamp != self._stamp or (self._present and present and present != self._present):
            self._changes += 1
            self._nowhere = frozenset()
            self._query.reset_backoff()
        self._stamp, self._present = stamp, present or self._present

    def _unreported(self, positions: Iterable[int]) -> frozenset[int]:
        """Return the positions that were missing from the last answer; the next answer may contain them."""
        return frozenset(position for position in positions if position >= self._n_positions)

    def _is_known(self, positions: Iterable[int]) -> bool:
        """Return whether the last answer is up to date for these positions."""
        return self._answered_at_change == self._changes and self._unreported(positions) <= self._nowhere

    def _ask_of(self, positions: frozenset[int]) -> None:
        if self._query.ask():
            self._asked_at_change, self._asked_of = self._changes, positions

    def _receive(self) -> None:
        try:
            text = self._query.answer()
        except SlurmError as error:
            self._answered_at_change = -1
            self._query.back_off()
            self._warn_once(str(error))
            return
        if text is None:
            return
        self._has_warned, self._has_news = False, True
        self._answered_at_change = self._asked_at_change
        self.can_be_shared = _SHARES.search(text) is not None
        files = parse_files(text)
        capabilities = read_capabilities(self._mig_minors) if any(len(f) > 1 for f in files) else {}
        self._places = [place_of(of_position, capabilities) for of_position in files]
        self._n_positions = len(files) or _count_without_files(text)
        # An answer that predates a change of the files does not delay the query that follows the change.
        is_current = self._answered_at_change == self._changes
        self._nowhere = self._unreported(self._nowhere | self._asked_of) if is_current else frozenset()
        if self._nowhere:
            self._query.back_off()
        else:
            self._query.reset_backoff()

    def _warn_of_silence(self) -> None:
        if self._query.is_silent:
            self._warn_once(f"{self._command_text}: no answer for {self._query.silent_s:.0f} s")

    def _warn_once(self, what: str) -> None:
        if not self._has_warned:
            log.warning("%s; new allocations are recorded as gaps until slurmd answers", what)
        self._has_warned = True
