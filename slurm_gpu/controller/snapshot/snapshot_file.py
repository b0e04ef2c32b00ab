"""Write and read snapshot.txt, the cluster state for job_submit.lua (docs/contracts.md, section 4)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from slurm_gpu.controller.queue.usage import RunningAndPending, Subject, Usage, UsageTotals
from slurm_gpu.controller.snapshot.encoding import encode
from slurm_gpu.controller.snapshot.reserve_table import ReserveTable
from slurm_gpu.controller.snapshot.share_table import ShareTable
from slurm_gpu.controller.snapshot.zone_table import ZoneTable
from slurm_gpu.controller.snapshot.zones import ZoneCapacity
from slurm_gpu.policy.language.hour_sums import COMMITTED, is_sum, parts_of

FILE_NAME = "snapshot.txt"
# Maximum age of a valid snapshot.
FRESH_S = 30

# The line `hours` omits this prefix from the keys of GPU-hours.
_PLAIN = "gpu_h_"

_HEADER = re.compile(r"slurm-gpu-snapshot 1 (\d+) (\d+)")
_COUNTS = ("jobs", "mgpu", "cpus", "mib", "nodes")
_HALVES = (("run", "running"), ("pend", "pending"))


@dataclass(frozen=True, slots=True)
class QueryTiming:
    """The time of the query as host uptime, which is more precise than `as_of_s` and is never set back."""

    began_s: float
    """Start of the query; rounded down to hundredths of a second in the file."""
    took_s: float
    """Time until the response; rounded up to hundredths of a second in the file."""
    boot_id: str
    """The ID of the host's boot; uptimes are comparable only within one boot of one host."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the cluster that slurmctld reported at the time `as_of_s`."""

    generation: int
    """The number of the snapshot, which increases with every snapshot."""
    as_of_s: int
    groups_id: str | None
    """The policy whose groups were counted; None if no policy is installed."""
    usage: Usage
    hours: Mapping[Subject, Mapping[str, float]] | None = None
    """Resource-hours by key (hour_sums.py) of each subject that has any; None if unknown."""
    period_starts: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, int] = field(default_factory=dict)
    """Submit times of recently admitted jobs that are counted, by token; the latest first."""
    zones: tuple[ZoneCapacity, ...] = ()
    placement: ZoneTable | None = None
    """The table of zones. Like `shares` and `reserve`, it is only for job_submit.lua and is not parsed."""
    shares: ShareTable | None = None
    reserve: ReserveTable | None = None
    timing: QueryTiming | None = None

    def hours_of(
        self, user: str | None, group: str | None, key: str, account: str | None = None
    ) -> float | None:
        """Return a sum of resource-hours of one subject; None if unknown."""
        if self.hours is None or not (key in self.period_starts or parts_of(key)[1] == COMMITTED):
            return None
        return self.hours.get(Subject(user, group, account), {}).get(key, 0.0)


def render(snapshot: Snapshot) -> str:
    """Return the content of snapshot.txt."""
    return "\n".join(_lines(snapshot)) + "\n"


def parse(text: str) -> Snapshot:
    """Parse the output of `render`; raise ValueError if the text is incomplete or not a snapshot."""
    lines = text.splitlines()
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if header is None:
        raise ValueError("not a snapshot: its header is missing")
    if not text.endswith("\n") or lines[-1] != f"end {header[1]}":
        raise ValueError("incomplete snapshot: its end is missing")
    by_subject: dict[Subject, RunningAndPending] = {}
    hours: dict[Subject, dict[str, float]] = {}
    uids: dict[str, int] = {}
    starts: dict[str, int] = {}
    groups_id, zones, timing = None, [], None
    seen: dict[str, int] = {}
    for line in lines[1:-1]:
        kind, *words = line.split(" ")
        if kind == "groups":
            groups_id = None if words[0] == "-" else words[0]
        elif kind == "looked":
            timing = QueryTiming(float(words[0]), float(words[1]), words[2])
        elif kind == "hours":
            pairs = (word.partition("=") for word in words)
            starts = {key if is_sum(key) else _PLAIN + key: int(start_s) for key, _, start_s in pairs}
        elif kind == "use":
            subject = _read_subject(words[0])
            by_subject[subject], hours[subject] = _read_use(words[1:])
        elif kind == "user":
            uids[unquote(words[0])] = int(words[1])
        elif kind == "seen":
            seen[words[0]] = int(words[1])
        elif kind == "zone":
            role = None if words[1] == "-" else unquote(words[1])
            zones.append(ZoneCapacity(unquote(words[0]), role, int(words[2]), int(words[3])))
    return Snapshot(
        generation=int(header[1]),
        as_of_s=int(header[2]),
        groups_id=groups_id,
        usage=Usage(by_subject, uids),
        hours=hours if starts else None,
        period_starts=starts,
        seen=seen,
        zones=tuple(zones),
        timing=timing,
    )


def read_fresh(path: Path, now_s: float) -> Snapshot | None:
    """Return the snapshot at `path`, or None if it is missing, incomplete or too old."""
    try:
        snapshot = parse(path.read_text(encoding="ascii"))
    except (OSError, ValueError, IndexError):
        return None
    return snapshot if now_s - snapshot.as_of_s <= FRESH_S else None


def last_generation(path: Path) -> int:
    """Return the generation of the file, even if the file is incomplete; 0 if there is no file."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            header = _HEADER.fullmatch(file.readline().rstrip("\n"))
    except OSError:
        return 0
    return int(header[1]) if header else 0


def _lines(snapshot: Snapshot) -> Iterator[str]:
    yield f"slurm-gpu-snapshot 1 {snapshot.generation} {snapshot.as_of_s}"
    yield f"groups {snapshot.groups_id or '-'}"
    if snapshot.timing is not None:
        began_s, took_s = math.floor(snapshot.timing.began_s * 100), math.ceil(snapshot.timing.took_s * 100)
        yield f"looked {began_s / 100:.2f} {took_s / 100:.2f} {snapshot.timing.boot_id}"
    if snapshot.hours is not None:
        starts = snapshot.period_starts.items()
        yield " ".join(("hours", *(f"{key.removeprefix(_PLAIN)}={start_s}" for key, start_s in starts)))
    hours = snapshot.hours or {}
    known: list[Subject] = sorted({*snapshot.usage.by_subject, *hours}, key=_subject)
    for subject in known:
        both = snapshot.usage.of(*subject)
        values = [*_counts(both), *_hours(hours.get(subject, {}))]
        yield " ".join(("use", _subject(subject), *values))
    for user, uid in sorted(snapshot.usage.uids.items()):
        yield f"user {encode(user)} {uid}"
    for token, submit_s in snapshot.seen.items():
        yield f"seen {token} {submit_s}"
    for zone in snapshot.zones:
        role = "-" if zone.role is None else encode(zone.role)
        yield f"zone {encode(zone.name)} {role} {zone.free_mgpu} {zone.free_nodes}"
    if snapshot.shares is not None:
        yield from snapshot.shares.lines()
    if snapshot.reserve is not None:
        yield from snapshot.reserve.lines()
    if snapshot.placement is not None:
        yield from snapshot.placement.lines()
    yield f"end {snapshot.generation}"


def _counts(both: RunningAndPending) -> Iterator[str]:
    for suffix, half in _HALVES:
        use: UsageTotals = getattr(both, half)
        for key in _COUNTS:
            if value := getattr(use, key):
                yield f"{key}_{suffix}={value}"
        for kind, mgpu in sorted(use.by_type.items()):
            yield f"mgpu_{suffix}:{encode(kind)}={mgpu}"
    if both.last_pending is not None:
        yield f"last_pend={both.last_pending}"


def _hours(hours: Mapping[str, float]) -> Iterator[str]:
    for key, value in hours.items():
        if value > 0:
            yield f"{key}={value:.3f}"


def _read_use(words: list[str]) -> tuple[RunningAndPending, dict[str, float]]:
    both, hours = RunningAndPending(), dict[str, float]()
    halves = {suffix: getattr(both, half) for suffix, half in _HALVES}
    for word in words:
        name, _, value = word.partition("=")
        if name == "last_pend":
            both.last_pending = int(value)
            continue
        if is_sum(name):
            hours[name] = float(value)
            continue
        key, _, suffix = name.partition("_")
        suffix, _, kind = suffix.partition(":")
        if kind:
            halves[suffix].by_type[unquote(kind)] = int(value)
        elif suffix in halves and key in _COUNTS:
            setattr(halves[suffix], key, int(value))
    return both, hours


def _subject(subject: Subject) -> str:
    user, group, account = subject
    if account is not None:
        return f"account:{encode(account)}@{encode(group or '')}"
    if user is None:
        return f"group:{encode(group or '')}"
    return f"user:{encode(user)}" + ("" if group is None else f"@{encode(group)}")


def _read_subject(text: str) -> Subject:
    kind, _, rest = text.partition(":")
    if kind == "group":
        return Subject(None, unquote(rest))
    name, at, group = rest.partition("@")
    if kind == "account":
        return Subject(None, unquote(group), unquote(name))
    return Subject(unquote(name), unquote(group) if at else None)
