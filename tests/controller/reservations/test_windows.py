"""Test the planning of reservations by nodes and busy spans."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.site import Zone
from slurm_gpu.controller.reservations.windows import nodes_needed, plan
from slurm_gpu.errors import UsageError
from slurm_gpu.placement.calendar import CalendarWindow
from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.reservation import Reservation, ReservationState
from tests.controller.fakes import NOON_S, make_node

HOUR_S, DAY_S, UTC = 3600, 86400, ZoneInfo("UTC")
ASKED = Reservation(
    id=3,
    cluster="lab",
    user="alice",
    account="vision",
    partition="gpu",
    gpus=8,
    n_nodes=2,
    duration_s=HOUR_S,
    earliest_s=NOON_S,
    why="paper",
    state=ReservationState.REQUESTED,
    requested_s=NOON_S,
)
NODES = [make_node(f"n{number}") for number in range(1, 5)]


def planned(
    in_slurm: list[SlurmReservation], earliest_s: int, latest_s: int, spare_s: float = 0
) -> CalendarWindow | None:
    one = Reservation(**{**to_json(ASKED), "earliest_s": earliest_s, "state": ReservationState.REQUESTED})
    return plan(one, NODES, (), in_slurm, (), {}, NOON_S, latest_s, spare_s, UTC)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=12), st.integers(1, 200))
def test_the_fewest_nodes_with_enough_gpus_are_requested(having: list[int], gpus: int) -> None:
    nodes = [make_node(f"n{number}", gpus={"a100": count}) for number, count in enumerate(having)]

    def would_do(n_nodes: int) -> bool:
        return sum(count * n_nodes >= gpus for count in having) >= n_nodes

    found = nodes_needed(nodes, gpus, None)
    assert found > len(having) or would_do(found)
    assert not any(map(would_do, range(1, min(found, len(having) + 1))))


@pytest.mark.parametrize("flag", ["HOURLY", "DAILY", "WEEKLY"])
def test_a_repeating_reservation_blocks_each_time(flag: str) -> None:
    """Hourly maintenance of half an hour on three of four nodes never leaves two nodes free for an hour."""
    every_s = {"HOURLY": HOUR_S, "DAILY": DAY_S, "WEEKLY": 7 * DAY_S}[flag]
    site = SlurmReservation("backup", NOON_S, NOON_S + HOUR_S // 2, "n[1-3]", flags=frozenset({flag}))
    for times in (0, 1, 50, 8000 if flag == "HOURLY" else 300):
        at_s = NOON_S + times * every_s
        assert planned([site], at_s + 60, at_s + 120) is None
    free = planned([site], NOON_S + 60, NOON_S + 2 * DAY_S)
    assert (free is None) == (flag == "HOURLY")


def test_a_node_in_two_zones_is_an_error() -> None:
    zones = {"z1": Zone("n[1-2]"), "z2": Zone("n[2-3]")}
    with pytest.raises(UsageError, match="n2 is in z1 and in z2"):
        plan(ASKED, NODES, (), (), (), zones, NOON_S, NOON_S + DAY_S, 0, UTC)
