"""Set the durations of calls of a node's simulated NVML, so that benchmarks include realistic costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .errors import RequestError
from .world import World


class CallTime(NamedTuple):
    """Time of one call, in µs."""

    # Processor time of the call.
    cpu_us: float = 0.0
    # Time for which the call sleeps.
    wait_us: float = 0.0
    # Additional processor time for each value, if the call requests a list of values.
    item_cpu_us: float = 0.0


def set_times(world: World, times: Mapping[str, CallTime]) -> None:
    """Set these durations for the named functions, and 0 for all others."""
    calls = world.content.calls[: world.content.n_functions]
    unknown = sorted(set(times) - {call.name.decode() for call in calls})
    if unknown:
        raise RequestError(f"function {unknown[0]!r}: the simulated NVML has no function of that name")
    for call in calls:
        time = times.get(call.name.decode(), CallTime())
        call.cpu_ns, call.wait_ns, call.item_cpu_ns = (round(us * 1000) for us in time)
