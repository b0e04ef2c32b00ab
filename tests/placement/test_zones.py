"""Roles of zones: each scale prefers its own zones, and guests use only what the hosts leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.placement.zones import (
    MOST_SCORE,
    JobScale,
    ZoneLoad,
    most_medium_nodes,
    reordered,
    scale_of,
    scores,
    stretched,
)

SMALL, MEDIUM, LARGE = JobScale

amounts = st.fixed_dictionaries({scale: st.integers(0, 100_000) for scale in JobScale})
loads = st.builds(
    lambda role, nodes, free: (role, nodes, min(free, nodes)),
    st.sampled_from(["small", "medium", "large", "spare", None]),
    st.integers(1, 20),
    st.integers(0, 20),
)


def zone(name: str, role: str | None, nodes: int = 4, free: int = 4) -> ZoneLoad:
    return ZoneLoad(name, role, nodes, free, nodes * 4000)


def best(zones: list[ZoneLoad], scale: JobScale, **demand: int) -> list[str]:
    """Return the names of the zones, the best for this scale first."""
    points = scores(zones, {JobScale(name): mgpu for name, mgpu in demand.items()})
    return sorted(points, key=lambda name: -points[name][scale])


def test_a_job_is_large_beyond_half_of_the_largest_zone() -> None:
    bound = most_medium_nodes([zone("z1", "large", 9), zone("z2", "small", 4)])
    assert [scale_of(nodes, bound) for nodes in (1, 2, 4, 5)] == [SMALL, MEDIUM, MEDIUM, LARGE]


def test_with_zones_of_two_nodes_a_job_on_two_is_large() -> None:
    bound = most_medium_nodes([zone("z1", "small", 2), zone("z2", "large", 2)])
    assert [scale_of(nodes, bound) for nodes in (1, 2)] == [SMALL, LARGE]


def test_each_scale_goes_to_its_own_zone_however_full_the_others_are() -> None:
    zones = [zone("a", "small", free=4), zone("b", "medium", free=4), zone("c", "large", free=4)]
    for number, scale in enumerate(JobScale):
        crowded = [z if i == number else zone(z.name, z.role, free=0) for i, z in enumerate(zones)]
        assert best(crowded, scale, small=90_000, medium=90_000, large=90_000)[0] == zones[number].name


def test_among_zones_alike_the_fuller_one_comes_first() -> None:
    zones = [zone("a", "large", free=4), zone("b", "large", free=1), zone("c", "large", free=2)]
    assert best(zones, LARGE) == ["b", "c", "a"]


def test_a_role_stretches_with_demand_and_shrinks_with_that_of_the_host() -> None:
    zones = [zone("s", "small"), zone("m", "medium"), zone("l", "large")]

    def points(**demand: int) -> dict[str, int]:
        found = scores(zones, {JobScale(name): mgpu for name, mgpu in demand.items()})
        return {name: by_scale[LARGE] for name, by_scale in found.items()}

    calm = points(large=16_000)
    assert calm["m"] == calm["s"] == 0
    crowded = points(large=20_000)
    assert crowded["m"] > crowded["s"] == 0
    overflowing = points(large=40_000)
    assert overflowing["m"] > overflowing["s"] > 0
    assert points(large=40_000, medium=16_000)["m"] == 0


def test_zones_without_a_role_take_what_is_too_much_before_the_neighbours_do() -> None:
    assert stretched({SMALL: 4000, LARGE: 8000}, {SMALL: 6000}, common=2000) == {}
    assert stretched({SMALL: 4000, LARGE: 8000}, {SMALL: 6000}, common=500)[SMALL, LARGE] == 1500


@given(capacity=amounts, demand=amounts, common=st.integers(0, 50_000))
def test_guests_get_only_what_hosts_leave_and_never_more_than_they_lack(
    capacity: dict[JobScale, int], demand: dict[JobScale, int], common: int
) -> None:
    granted = stretched(capacity, demand, common)
    for scale in JobScale:
        taken = sum(amount for (_, host), amount in granted.items() if host is scale)
        given_to = sum(amount for (guest, _), amount in granted.items() if guest is scale)
        assert taken <= max(0, capacity[scale] - demand[scale]) + 1e-6
        assert given_to <= max(0, demand[scale] - capacity[scale]) + 1e-6


@given(shape=st.lists(loads, min_size=1, max_size=8), demand=amounts)
def test_scores_are_bounded_and_guests_score_below_the_zone_s_own_scale(
    shape: list[tuple[str | None, int, int]], demand: dict[JobScale, int]
) -> None:
    zones = [zone(f"z{number}", role, nodes, free) for number, (role, nodes, free) in enumerate(shape)]
    points = scores(zones, demand)
    for scale in JobScale:
        home = [points[z.name][scale] for z in zones if z.scale is scale]
        guests = [points[z.name][scale] for z in zones if z.scale is not scale]
        assert all(0 <= score <= MOST_SCORE for score in (*home, *guests))
        if home and guests:
            assert min(home) > max(guests)


@given(
    points=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000)),
    offered=st.permutations("abcd"),
    margin=st.integers(1, 300),
)
def test_another_order_is_of_the_same_zones_and_is_left_alone_afterwards(
    points: dict[str, int], offered: list[str], margin: int
) -> None:
    order = reordered(offered, points, margin)
    if order is None:
        known = [points.get(name, -1) for name in offered]
        assert all(later - earlier < margin for i, earlier in enumerate(known) for later in known[i:])
    else:
        assert sorted(order) == sorted(offered)
        assert reordered(order, points, margin) is None
