"""Windows of reservations avoid busy spans, have the requested nodes, and start as early as possible."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from slurm_gpu.placement.calendar import FOREVER, BusySpan, CalendarWindow, Candidate, earliest_window
from slurm_gpu.placement.promises import PromiseDelays, lateness_s, summarize

NODES = [Candidate(f"n{n}", 4, "zone1" if n <= 2 else "zone2") for n in range(1, 5)]
SPANS = st.lists(
    st.builds(
        lambda node, from_s, length: BusySpan(node, from_s, from_s + length),
        st.sampled_from([one.name for one in NODES] + ["elsewhere"]),
        st.integers(-5, 30),
        st.one_of(st.integers(0, 15), st.just(FOREVER)),
    ),
    max_size=12,
)


def is_free(node: str, from_s: int, until_s: int, taken: list[BusySpan]) -> bool:
    return not any(
        one.node == node and one.from_s < until_s and from_s < one.until_s and one.from_s < one.until_s
        for one in taken
    )


@given(SPANS, st.integers(1, 5), st.integers(1, 8), st.integers(0, 20), st.integers(0, 40))
@example([BusySpan("n1", 1, 1), BusySpan("n2", 0, FOREVER)], 3, 2, 0, 0)
def test_a_window_is_free_whole_and_the_first_of_all(
    taken: list[BusySpan], n_nodes: int, duration_s: int, earliest_s: int, more_s: int
) -> None:
    latest_s = earliest_s + more_s
    found = earliest_window(NODES, taken, n_nodes, duration_s, earliest_s, latest_s)
    if found is not None:
        assert earliest_s <= found.start_s <= latest_s
        assert found.end_s - found.start_s == duration_s
        assert len(set(found.nodes)) == n_nodes
        assert all(is_free(node, found.start_s, found.end_s, taken) for node in found.nodes)
    before = range(earliest_s, latest_s + 1 if found is None else found.start_s)
    for start_s in before:
        free = [one for one in NODES if is_free(one.name, start_s, start_s + duration_s, taken)]
        assert len(free) < n_nodes


@given(SPANS, st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8)), max_size=6))
def test_windows_granted_one_after_another_never_overlap(
    taken: list[BusySpan], asked: list[tuple[int, int]]
) -> None:
    granted: list[BusySpan] = []
    for n_nodes, duration_s in asked:
        found = earliest_window(NODES, taken + granted, n_nodes, duration_s, 0)
        if found is not None:
            mine = [BusySpan(node, found.start_s, found.end_s) for node in found.nodes]
            assert all(is_free(one.node, one.from_s, one.until_s, granted) for one in mine)
            granted += mine


def test_nodes_of_one_zone_come_first_and_the_zone_with_the_fewest_to_spare() -> None:
    assert earliest_window(NODES, [], 2, 10, 5) == CalendarWindow(5, 15, ("n1", "n2"))
    assert earliest_window(NODES, [BusySpan("n1", 0, 9)], 2, 10, 5) == CalendarWindow(5, 15, ("n3", "n4"))
    assert earliest_window(NODES, [BusySpan("n1", 0, 9)], 1, 10, 5) == CalendarWindow(5, 15, ("n2",))
    straddling = earliest_window(NODES, [BusySpan("n1", 0, 9), BusySpan("n3", 0, 9)], 2, 10, 5)
    assert straddling == CalendarWindow(5, 15, ("n2", "n4"))
    assert earliest_window(NODES, [BusySpan("n1", 0, 9)], 3, 10, 5) == CalendarWindow(
        5, 15, ("n3", "n4", "n2")
    )


def test_a_job_of_a_few_gpus_is_not_given_the_largest_nodes() -> None:
    large = [Candidate("big", 8), Candidate("n1", 4), Candidate("n2", 4)]
    assert earliest_window([*large], [], 1, 10, 0) == CalendarWindow(0, 10, ("n1",))


def test_no_window_follows_a_span_without_an_end() -> None:
    assert earliest_window(NODES[:1], [BusySpan("n1", 0, FOREVER)], 1, 10, 0) is None
    assert earliest_window(NODES[:1], [BusySpan("n1", 50, FOREVER)], 1, 50, 0) == CalendarWindow(
        0, 50, ("n1",)
    )
    assert earliest_window(NODES[:1], [BusySpan("n1", 50, FOREVER)], 1, 51, 0) is None


def test_lateness_counts_from_the_promise_or_from_when_the_job_came() -> None:
    assert lateness_s(100, 130) == 30
    assert lateness_s(100, 90) == 0
    assert lateness_s(100, 230, submitted_s=200) == 30
    assert lateness_s(100, None) is None


def test_promises_are_summed_up_over_those_that_were_used() -> None:
    assert summarize([0, 30, None, 10]) == PromiseDelays(3, 1, 10.0, 30.0)
    assert summarize([None]) == PromiseDelays(0, 1)
    assert summarize([]) == PromiseDelays(0, 0)
