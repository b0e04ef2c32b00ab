"""Node weights: the fullest fitting node first, whole nodes last, and the site's own order kept."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.placement.weights import FULL, NodeCapacity, WeightScale, changes, layout, level_of


def capacity(used: float = 0, gpus: int = 4, **given: Any) -> NodeCapacity:
    """Build a node of 32 cores and 1000 MiB, in use in proportion to its GPUs."""
    share = 1 - used / gpus
    values: dict[str, Any] = {"cpus_free": math.ceil(32 * share), "memory_free_mib": math.ceil(1000 * share)}
    return NodeCapacity(name="n", gpus=gpus, gpus_used=used, cpus=32, memory_mib=1000, **(values | given))


def level(node: NodeCapacity, before: int | None = None, largest: int | None = None) -> int:
    largest = node.gpus if largest is None else largest
    return level_of(node, WeightScale(largest), before)


def test_the_fewer_gpus_are_left_the_lower_and_whole_nodes_are_alone_at_the_top() -> None:
    assert [level(capacity(used)) for used in (4, 3, 2, 1, 0)] == [FULL, 1, 2, 3, 4]


def test_a_whole_node_is_kept_however_small_it_is() -> None:
    assert [level(capacity(used, gpus=2), largest=8) for used in (2, 1, 0)] == [FULL, 1, 8]


def test_nodes_of_sixteen_gpus_have_nine_levels_exact_where_it_is_full() -> None:
    levels = [level(capacity(used, gpus=16)) for used in range(16, -1, -1)]
    assert levels[:5] == [FULL, 1, 2, 3, 4]
    assert levels == sorted(levels)
    assert (levels[-2], levels[-1]) == (7, 8)


def test_a_node_without_cores_or_memory_takes_no_job_though_its_gpus_are_free() -> None:
    assert level(capacity(1, cpus_free=0)) == FULL
    assert level(capacity(1, memory_free_mib=0)) == FULL


def test_only_gpus_with_cores_and_memory_count_as_left() -> None:
    # Three GPUs are free, but only one has its share of cores: one more job fits, so the node is used first.
    assert level(capacity(1, cpus_free=8)) == level(capacity(3)) == 1
    # A CPU job uses half of an idle node: a job of four GPUs does not find enough cores there.
    assert level(capacity(0, cpus_free=16)) == 2
    # A core or two in use cost no GPU.
    assert level(capacity(0, cpus_free=30)) == 4


def test_shards_and_cores_that_come_and_go_do_not_move_a_node_but_a_gpu_does() -> None:
    assert level(capacity(1.25), before=3) == 3
    assert level(capacity(1.7), before=3) == 3
    assert level(capacity(1.8), before=3) == 2
    assert level(capacity(1.7)) == 2
    assert [level(capacity(used), before=2) for used in (3, 2, 1)] == [1, 2, 3]
    # Whole nodes have no hysteresis: a node with any job is no longer whole.
    assert level(capacity(0.25), before=4) == 3
    assert level(capacity(0), before=3) == 4


def test_the_worth_of_a_node_by_the_mix_replaces_the_gpus_left() -> None:
    assert [level(capacity(2, worth=worth)) for worth in (0, 0.5, 1.4, 3.2, 7)] == [FULL, 1, 1, 3, 3]
    # A whole node is whole regardless of its value, and one without cores fits no job.
    assert level(capacity(0, worth=0)) == 4
    assert level(capacity(1, worth=3, cpus_free=0)) == FULL
    assert level(capacity(2, worth=1.7), before=1) == 1
    assert level(capacity(2, worth=1.8), before=1) == 2


HOUR_S = 3600.0


def timed(node: NodeCapacity, in_h: float | None, before: int | None = None, **more: Any) -> int:
    """Return the level of a node whose jobs end in `in_h` hours."""
    in_s = None if in_h is None else in_h * HOUR_S
    return level_of(
        dataclasses.replace(node, whole_in_s=in_s, **more), WeightScale(node.gpus, timed=True), before
    )


def test_a_longer_remaining_time_fills_a_node_sooner_and_whole_nodes_are_above_all() -> None:
    assert WeightScale(4, whole_ranks=3, timed=True).levels == 19
    for gpus in (2, 4, 8, 16):
        hours = [math.inf, 1000, 24, 4, 1, 0.25, 0]
        levels = [timed(capacity(1, gpus=gpus), in_h) for in_h in hours]
        assert levels == sorted(levels)
        assert FULL <= levels[0] < levels[-1] < timed(capacity(0, gpus=gpus), 0) == 16
        assert levels[0] == levels[1]  # ten days count like no limit
    # An exceeded limit, or an unknown one, still gets a level.
    assert timed(capacity(1), -5) == timed(capacity(1), 0)
    assert timed(capacity(1), 24) < timed(capacity(1), None) < timed(capacity(1), 0)


def test_the_fullest_of_nodes_whose_jobs_end_together_comes_first() -> None:
    for in_h in (0.1, 3, 200):
        levels = [timed(capacity(used, gpus=8), in_h) for used in range(7, 0, -1)]
        assert levels == sorted(levels)
        assert len(set(levels)) > 3
    # Each doubling of the time weighs as much as one GPU less.
    assert (
        timed(capacity(3, gpus=8), 3.75)
        == timed(capacity(4, gpus=8), 1.75)
        == timed(capacity(5, gpus=8), 0.75)
    )


def test_a_node_full_with_one_job_ends_whole_and_is_kept() -> None:
    full = capacity(4, cpus_free=0)
    assert timed(full, 10, one_job=True) == timed(capacity(0), 0) == 16
    assert timed(full, 10) < timed(capacity(3), 10, one_job=True) < 16
    # CPU jobs may use the node's remaining cores before cores that GPU jobs need.
    assert timed(capacity(4, cpus_free=8), 10, one_job=True) == timed(full, 10)
    assert level_of(dataclasses.replace(full, one_job=True), WeightScale(4)) == FULL


def test_a_full_node_is_ranked_by_time_so_that_it_is_not_first_when_a_job_ends() -> None:
    levels = [timed(capacity(4), in_h) for in_h in (math.inf, 24, 1, 0)]
    assert levels[0] == FULL
    assert levels == sorted(set(levels))
    assert timed(capacity(4), 24) < timed(capacity(3), 24) < timed(capacity(4), 0.1)
    assert timed(capacity(2, cpus_free=0), 24) == timed(capacity(4), 24)  # without cores nothing fits


def test_passing_time_moves_a_node_only_after_three_quarters_of_a_level() -> None:
    node, moves, level_now = capacity(1, gpus=8), 0, timed(capacity(1, gpus=8), 240)
    for minutes in range(240 * 60, -1, -1):
        then = timed(node, minutes / 60, level_now)
        assert then - level_now in (0, 1)
        moves += then != level_now
        level_now = then
    assert 5 <= moves <= 10


def test_whole_nodes_of_several_ranks_are_above_all_others_in_their_order() -> None:
    scale = WeightScale(4, whole_ranks=3)
    assert scale.levels == 7
    assert [level_of(capacity(0, whole_rank=rank), scale) for rank in range(3)] == [4, 5, 6]
    assert level_of(capacity(1, whole_rank=2), scale) == 3
    assert WeightScale.of([capacity(gpus=4), capacity(gpus=16)], 2) == WeightScale(16, 2)
    assert WeightScale(16, 2).levels == 10


@given(st.integers(1, 16), st.data())
def test_a_node_with_less_left_is_never_above(gpus: int, data: st.DataObject) -> None:
    less, more = sorted(data.draw(st.tuples(st.integers(0, gpus), st.integers(0, gpus))), reverse=True)
    assert level(capacity(less, gpus=gpus)) <= level(capacity(more, gpus=gpus))
    settled = level(capacity(less, gpus=gpus), before=level(capacity(more, gpus=gpus)))
    # Only nodes with more GPUs than levels may keep another level, and then an adjacent one.
    assert settled == level(capacity(less, gpus=gpus)) or (
        gpus > 8 and settled - level(capacity(less, gpus=gpus)) == 1
    )


def test_weights_begin_with_the_sites_own() -> None:
    assert layout({1}, (), 5) == {1: (1, 2, 3, 4, 5)}
    assert layout({1, 10}, (), 5) == {1: (1, 2, 3, 4, 5), 10: (10, 11, 12, 13, 14)}


def test_the_sites_order_of_managed_nodes_is_kept_where_their_weights_are_close() -> None:
    found = layout({1, 2, 100}, (), 5)
    assert (found[1], found[2], found[100][0]) == ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10), 100)


def test_nodes_that_are_not_ours_stay_on_their_side() -> None:
    # CPU nodes had the Weight of GPU nodes: now they come first, and CPU jobs avoid GPU nodes.
    assert layout({1}, {1}, 5) == {1: (2, 3, 4, 5, 6)}
    # Three weights are below the next: whole nodes keep their own.
    assert layout({1}, {4}, 5) == {1: (1, 1, 2, 2, 3)}
    # No weight is free in between, so nothing is changed.
    assert layout({1}, {1, 2}, 5) == {1: (1, 1, 1, 1, 1)}


@given(
    st.sets(st.integers(0, 60), min_size=1, max_size=4),
    st.sets(st.integers(0, 60), max_size=4),
    st.integers(2, 9),
)
def test_the_sites_own_order_is_kept_in_every_layout(
    managed: set[int], others: set[int], levels: int
) -> None:
    found = layout(managed, others, levels)
    assert found.keys() == managed
    for weight, ours in found.items():
        assert len(ours) == levels
        assert list(ours) == sorted(ours)
        assert min(ours) >= 0
        for other in others:
            if weight < other:
                assert max(ours) < other
            elif weight > other:
                assert min(ours) > other
            else:
                assert min(ours) > other or set(ours) == {weight}
        for second, second_ours in found.items():
            if weight < second:
                assert max(ours) < min(second_ours) or set(ours) == {weight}


def test_only_differing_weights_are_set() -> None:
    wanted = {"n1": 5, "n2": 1, "n3": 5, "gone": 3}
    assert changes(wanted, {"n1": 1, "n2": 1, "n3": 1, "cpu": 9}) == {5: ["n1", "n3"]}
    assert list(changes({"a": 3, "b": 2}, {"a": 1, "b": 1})) == [2, 3]


@pytest.mark.parametrize("field", ["cpus", "memory_mib"])
def test_a_node_without_reported_cores_or_memory_has_none(field: str) -> None:
    assert level(dataclasses.replace(capacity(1), **{field: 0})) == FULL
