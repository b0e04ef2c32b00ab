"""Schedules as people write them: phases, ramps and profiles, turned into points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .errors import RequestError
from .layout import MAX_POINTS
from .load import USUAL, Activity, Point

Ramp = tuple[float, float]
"""Value at the begin and at the end of a phase."""

_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_RAMP = re.compile(rf"({_NUMBER})(?::({_NUMBER}))?")


@dataclass(frozen=True)
class Phase:
    """A stretch of time in which utilisation and memory change evenly, or not at all."""

    seconds: float
    util_pct: Ramp = (0.0, 0.0)
    memory_mib: Ramp = (0.0, 0.0)

    def first(self, seconds: float) -> Phase:
        """Return the first ``seconds`` of this phase."""
        x = seconds / self.seconds
        return Phase(seconds, _cut(self.util_pct, x), _cut(self.memory_mib, x))

    def last(self, seconds: float) -> Phase:
        """Return the last ``seconds`` of this phase."""
        x = 1 - seconds / self.seconds
        util, memory = _cut(self.util_pct, x)[1], _cut(self.memory_mib, x)[1]
        return Phase(seconds, (util, self.util_pct[1]), (memory, self.memory_mib[1]))


@dataclass(frozen=True)
class Profile:
    """A kind of application: what it does at its start, and then again and again."""

    about: str
    start: tuple[Phase, ...]
    cycle: tuple[Phase, ...]


def _cut(ramp: Ramp, x: float) -> Ramp:
    return ramp[0], ramp[0] + (ramp[1] - ramp[0]) * x


PROFILES = {
    "resnet50": Profile(
        "image training: a data pause between epochs, steady otherwise",
        start=(
            Phase(2, (0, 0), (400, 400)),
            Phase(2, (0, 60), (400, 9200)),
            Phase(1, (60, 92), (9200, 9200)),
        ),
        cycle=(
            Phase(8, (92, 92), (9200, 9200)),
            Phase(0.5, (5, 5), (9200, 9200)),
            Phase(3, (55, 55), (7000, 7000)),
            Phase(0.5, (0, 0), (9200, 9200)),
        ),
    ),
    "bert": Profile(
        "language model training: nearly full, a checkpoint each 15 s",
        start=(Phase(3, (0, 0), (500, 14000)), Phase(1, (0, 97), (14000, 14000))),
        cycle=(Phase(14, (97, 97), (14000, 14000)), Phase(1, (0, 0), (14000, 14000))),
    ),
    "inference": Profile(
        "a model server: low, in bursts",
        start=(Phase(1, (0, 0), (400, 6000)),),
        cycle=(
            Phase(2, (5, 45), (6000, 6000)),
            Phase(1, (45, 5), (6000, 6000)),
            Phase(3, (2, 2), (6000, 6000)),
        ),
    ),
    "notebook": Profile(
        "a notebook: memory held, now and then a cell",
        start=(Phase(1, (0, 0), (300, 2200)),),
        cycle=(Phase(9, (0, 0), (2200, 2200)), Phase(1, (70, 70), (2600, 2600))),
    ),
}


def parse_ramp(text: str, what: str, highest: float | None = None) -> Ramp:
    """Parse ``40`` or ``10:90``."""
    match = _RAMP.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{what} {text!r}: must be a number, or two for a ramp, as 40 or 10:90")
    begin = float(match[1])
    ramp = begin, begin if match[2] is None else float(match[2])
    if highest is not None and max(ramp) > highest:
        raise RequestError(f"{what} {text!r}: must not exceed {highest:g}")
    return ramp


def parse_seconds(text: str, what: str) -> float:
    """Parse a duration in seconds; at least a millisecond."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0.001 <= seconds <= 1e7:
        raise RequestError(f"{what} {text!r}: must be seconds, 0.001 or more")
    return seconds


def parse_activity(text: str) -> Activity:
    """Parse ``sm_active=0.9,tensor=0.5``; what is not given is as usual."""
    factors: dict[str, float] = {}
    for item in text.split(",") if text else ():
        name, _, value = (piece.strip() for piece in item.partition("="))
        if name not in Activity._fields:
            raise RequestError(f"activity {name!r}: must be one of {', '.join(Activity._fields)}")
        if not re.fullmatch(_NUMBER, value) or float(value) > 1:
            raise RequestError(f"activity {item.strip()!r}: must be a factor from 0 to 1, as {name}=0.5")
        factors[name] = float(value)
    return USUAL._replace(**factors)


def parse_phases(text: str) -> list[Phase]:
    """Parse ``util=80,mem=4000,s=5; util=0,mem=4000,s=3``; util and mem are 0 where not given."""
    phases = [_parse_phase(part) for part in text.split(";") if part.strip()]
    if not phases:
        raise RequestError(f"phases {text!r}: must have at least one, as 'util=80,mem=4000,s=5'")
    return phases


def _parse_phase(text: str) -> Phase:
    phase = Phase(0)
    for item in text.split(","):
        key, _, value = (piece.strip() for piece in item.partition("="))
        if key == "util":
            phase = replace(phase, util_pct=parse_ramp(value, "util", highest=100))
        elif key == "mem":
            phase = replace(phase, memory_mib=parse_ramp(value, "mem"))
        elif key == "s":
            phase = replace(phase, seconds=parse_seconds(value, "s"))
        else:
            raise RequestError(f"phase {text.strip()!r}: unknown key {key!r}; known are util, mem and s")
    if phase.seconds == 0:
        raise RequestError(f"phase {text.strip()!r}: s=SECONDS is missing")
    return phase


def from_profile(name: str, seconds: float) -> list[Phase]:
    """Return ``seconds`` of a profile: its start, then its cycle as often as there is time."""
    profile = PROFILES.get(name)
    if profile is None:
        raise RequestError(f"profile {name!r}: must be one of {', '.join(PROFILES)}")
    phases: list[Phase] = []
    left = seconds
    upcoming = profile.start
    while True:
        for phase in upcoming:
            if phase.seconds >= left:
                return [*phases, phase.first(left)]
            phases.append(phase)
            left -= phase.seconds
        upcoming = profile.cycle


def to_points(phases: Sequence[Phase], start_ns: int) -> tuple[Point, ...]:
    """Lay the phases end to end from ``start_ns`` on; neighbours that meet share a vertex."""
    points: list[Point] = []
    elapsed = 0.0
    for phase in phases:
        begin_ns = start_ns + round(elapsed * 1e9)
        elapsed += phase.seconds
        ends = (
            Point(begin_ns, phase.util_pct[0], phase.memory_mib[0]),
            Point(start_ns + round(elapsed * 1e9), phase.util_pct[1], phase.memory_mib[1]),
        )
        points.extend(point for point in ends if not points or point != points[-1])
    if len(points) > MAX_POINTS:
        raise RequestError(
            f"the schedule has {len(points)} vertices: at most {MAX_POINTS} fit; make it shorter"
        )
    return tuple(points)
