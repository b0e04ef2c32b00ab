"""Parse the schedules that users write (phases, ramps and profiles), and convert them to points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from .errors import RequestError
from .layout import MAX_POINTS
from .load import FULL, USUAL, Activity, Footprint, Point

# The values at the beginning and at the end of a phase.
Ramp = tuple[float, float]

_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_RAMP = re.compile(rf"({_NUMBER})(?::({_NUMBER}))?")


@dataclass(frozen=True)
class Phase:
    """A period in which utilisation and memory are constant or change linearly."""

    seconds: float
    util_pct: Ramp = (0.0, 0.0)
    memory_mib: Ramp = (0.0, 0.0)
    activity: Activity = USUAL
    footprint: Footprint = FULL

    def first(self, seconds: float) -> Phase:
        """Return the first ``seconds`` of this phase."""
        x = seconds / self.seconds
        util, memory = _cut(self.util_pct, x), _cut(self.memory_mib, x)
        return replace(self, seconds=seconds, util_pct=util, memory_mib=memory)

    def last(self, seconds: float) -> Phase:
        """Return the last ``seconds`` of this phase."""
        x = 1 - seconds / self.seconds
        util, memory = _cut(self.util_pct, x)[1], _cut(self.memory_mib, x)[1]
        return replace(
            self,
            seconds=seconds,
            util_pct=(util, self.util_pct[1]),
            memory_mib=(memory, self.memory_mib[1]),
        )


@dataclass(frozen=True)
class Profile:
    """A kind of application: its phases at the start, and those that it repeats."""

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
        "language model training: nearly full, a checkpoint every 15 s",
        start=(Phase(3, (0, 0), (500, 14000)), Phase(1, (0, 97), (14000, 14000))),
        cycle=(Phase(14, (97, 97), (14000, 14000)), Phase(1, (0, 0), (14000, 14000))),
    ),
    "inference": Profile(
        "a model server: low use, in bursts",
        start=(Phase(1, (0, 0), (400, 6000)),),
        cycle=(
            Phase(2, (5, 45), (6000, 6000)),
            Phase(1, (45, 5), (6000, 6000)),
            Phase(3, (2, 2), (6000, 6000)),
        ),
    ),
    "notebook": Profile(
        "a notebook: memory in use, a cell runs now and then",
        start=(Phase(1, (0, 0), (300, 2200)),),
        cycle=(Phase(9, (0, 0), (2200, 2200)), Phase(1, (70, 70), (2600, 2600))),
    ),
}


def parse_ramp(text: str, what: str, highest: float | None = None) -> Ramp:
    """Parse ``40`` or ``10:90``."""
    match = _RAMP.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{what} {text!r}: must be a number, or two for a ramp, such as 40 or 10:90")
    begin = float(match[1])
    ramp = begin, begin if match[2] is None else float(match[2])
    if highest is not None and max(ramp) > highest:
        raise RequestError(f"{what} {text!r}: must not exceed {highest:g}")
    return ramp


def parse_seconds(text: str, what: str) -> float:
    """Parse a duration in seconds, of at least a millisecond."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0.001 <= seconds <= 1e7:
        raise RequestError(f"{what} {text!r}: must be seconds, at least 0.001")
    return seconds


def parse_activity(text: str) -> Activity:
    """Parse ``sm_active=0.9,tensor=0.5``; missing factors have their usual values."""
    factors: dict[str, float] = {}
    for item in text.split(",") if text else ():
        name, _, value = (piece.strip() for piece in item.partition("="))
        if name not in Activity._fields:
            raise RequestError(f"activity {name!r}: must be one of {', '.join(Activity._fields)}")
        factors[name] = _parse_factor(value, f"activity {item.strip()!r}", name)
    return USUAL._replace(**factors)


def _parse_factor(text: str, what: str, name: str) -> float:
    if not re.fullmatch(_NUMBER, text) or float(text) > 1:
        raise RequestError(f"{what}: must be a factor from 0 to 1, such as {name}=0.5")
    return float(text)


def parse_phases(text: str, activity: Activity = USUAL) -> list[Phase]:
    """Parse ``util=80,mem=4000,s=5; util=0,mem=4000,s=3``; util and mem are 0 if missing.

    A phase may have its own activity and footprint: ``util=99,power=0.6,clock=0.7,reasons=0x40,s=9``.
    """
    phases = [_parse_phase(part, activity) for part in text.split(";") if part.strip()]
    if not phases:
        raise RequestError(f"phases {text!r}: must have at least one, such as 'util=80,mem=4000,s=5'")
    return phases


def _parse_phase(text: str, activity: Activity) -> Phase:
    phase = Phase(0, activity=activity)
    for item in text.split(","):
        key, _, value = (piece.strip() for piece in item.partition("="))
        if key == "util":
            phase = replace(phase, util_pct=parse_ramp(value, "util", highest=100))
        elif key == "mem":
            phase = replace(phase, memory_mib=parse_ramp(value, "mem"))
        elif key == "s":
            phase = replace(phase, seconds=parse_seconds(value, "s"))
        elif key == "reasons":
            phase = replace(phase, footprint=phase.footprint._replace(reasons=_parse_reasons(value)))
        elif key in Activity._fields:
            phase = replace(phase, activity=phase.activity._replace(**{key: _parse_factor(value, key, key)}))
        elif key in Footprint._fields:
            factor = _parse_factor(value, key, key)
            phase = replace(phase, footprint=Footprint(**{**phase.footprint._asdict(), key: factor}))
        else:
            known = ", ".join(("util", "mem", "s", *Activity._fields, *Footprint._fields))
            raise RequestError(f"phase {text.strip()!r}: unknown key {key!r}; known are {known}")
    if phase.seconds == 0:
        raise RequestError(f"phase {text.strip()!r}: s=SECONDS is missing")
    return phase


def _parse_reasons(text: str) -> int:
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        raise RequestError(f"reasons {text!r}: must be NVML's bits in hexadecimal, such as 0x40")
    return int(text, 16)


def from_profile(name: str, seconds: float) -> list[Phase]:
    """Return ``seconds`` of a profile: its start, then its cycle until the time is over."""
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


def stretches(phases: Sequence[Phase]) -> list[list[Phase]]:
    """Split phases where activity or footprint changes, since a schedule has only one value of each."""
    return [list(alike) for _, alike in groupby(phases, lambda phase: (phase.activity, phase.footprint))]


def to_points(phases: Sequence[Phase], start_ns: int) -> tuple[Point, ...]:
    """Convert consecutive phases to points from ``start_ns`` on; equal ends of neighbours share a vertex."""
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
