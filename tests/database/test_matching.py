import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.accounting import matching as match
from slurm_gpu.database.accounting.matching import RecordSpan, RunSpan, assign
from tests.database.samples import segment


def _run(
    run_id: int, start_s: int | None, end_s: int | None, nodes: str = "n1", restart: int | None = None
) -> RunSpan:
    return RunSpan(
        run_id=run_id,
        restart=restart,
        submit_s=(start_s or 0) - 1,
        start_s=start_s,
        end_s=end_s,
        nodes=frozenset(nodes.split(",")),
    )


def _record(first_s: int, last_s: int, restart: int = 0, node: str = "n1") -> RecordSpan:
    return RecordSpan(
        segment=segment(1), device="GPU-1", node=node, restart=restart, first_s=first_s, last_s=last_s
    )


def _found(runs: list[RunSpan], record: RecordSpan) -> int | None:
    return assign(runs, [record])[record.segment, record.device]


REQUEUED = [_run(1, 1000, 1010), _run(2, 1040, 1050)]


def test_a_requeued_jobs_runs_keep_their_own_records() -> None:
    assert _found(REQUEUED, _record(1000, 1011, restart=0)) == 1
    assert _found(REQUEUED, _record(1040, 1051, restart=1)) == 2


def test_order_of_start_outweighs_a_clock_that_is_off() -> None:
    assert _found(REQUEUED, _record(1005, 1015, restart=1)) == 2
    assert _found(REQUEUED, _record(1040, 1050, restart=0)) == 1


def test_the_restart_count_of_accounting_decides_where_there_is_one() -> None:
    runs = [_run(1, 1000, 1010, restart=3), _run(2, 1040, 1050, restart=4)]
    assert _found(runs, _record(1000, 1010, restart=4)) == 2
    assert _found(runs, _record(1000, 1010, restart=9)) is None


def test_time_decides_where_old_runs_are_missing() -> None:
    assert _found([_run(7, 5000, 5100)], _record(5000, 5100, restart=2)) == 7


def _all_found(runs: list[RunSpan], *records: RecordSpan) -> list[int | None]:
    """Return the matching run of each record of one job."""
    named = [replace(record, segment=segment(n)) for n, record in enumerate(records)]
    found = assign(runs, named)
    return [found[record.segment, record.device] for record in named]


def test_the_records_of_a_first_run_that_is_missing_are_no_other_runs() -> None:
    """Test that records of the first run match no run while accounting has only the second and third."""
    first, second, third = _record(1000, 1800), _record(1830, 2600, restart=1), _record(2630, 3400, restart=2)
    runs = [_run(2, 1830, 2600), _run(3, 2630, 3400)]
    assert _all_found(runs, first, second, third) == [None, 2, 3]
    assert _all_found(runs, third, second) == [3, 2]
    assert _all_found([_run(1, 1000, 1800), *runs], first, second, third) == [1, 2, 3]


def test_all_that_a_run_was_watched_by_goes_to_it_though_the_first_is_missing() -> None:
    parts = [_record(2000, 3900, restart=1), _record(3950, 3990, restart=1)]
    runs = [_run(2, 2000, 4000), _run(3, 4120, 4130)]
    assert _all_found(runs, *parts) == [2, 2]
    many = [replace(part, device=f"GPU-{n}") for n in range(8) for part in parts]
    assert _all_found(runs, *many) == [2] * 16


def test_a_last_run_that_is_not_there_yet_is_no_missing_first_one() -> None:
    records = [_record(1000, 1800), _record(1830, 2600, restart=1), _record(2630, 3400, restart=2)]
    runs = [_run(1, 1000, 1800), _run(2, 1830, 2600)]
    assert _all_found(runs, *records[:2]) == [1, 2]
    assert _all_found(runs, *records) == [1, 2, None]
    assert _all_found(runs, records[1], records[2]) == [2, None]


def test_a_clock_that_is_off_by_less_than_a_minute_hides_no_run() -> None:
    """Test that eight GPUs count as one, because they share one clock."""
    late = [replace(_record(1005, 1015, restart=1), device=f"GPU-{n}") for n in range(8)]
    assert _all_found(REQUEUED, *late) == [2] * 8


def test_matching_a_flood_of_records_of_one_job_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    n_calls, original = 0, match._off_s

    def off_s(started: Sequence[RunSpan], record: RecordSpan, index: int) -> float:
        nonlocal n_calls
        n_calls += 1
        return original(started, record, index)

    monkeypatch.setattr(match, "_off_s", off_s)
    flood = [_record(5000, 5010, restart=n % 1000) for n in range(20_000)]
    assert match._missing_before(REQUEUED, flood) == 0
    assert n_calls <= 300_000


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(-20, 20),
)
def test_every_record_of_a_known_run_is_that_runs(lengths: list[int], n_missing: int, off_s: int) -> None:
    """Test any number of missing first runs, with roughly correct clocks and runs of sufficient length."""
    runs, records, began = [], [], 10_000
    for n, length in enumerate(lengths):
        ended = began + 100 + length
        runs.append(_run(n, began, ended))
        records.append(_record(began + off_s, ended + off_s, restart=n))
        began = ended + 100
    known = runs[n_missing:]
    expected = [run if run >= n_missing else None for run in range(len(runs))]
    assert _all_found(known, *records) == expected


def test_a_flood_of_records_is_not_compared_with_each_of_a_jobs_many_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_calls, original = 0, match._overlap_s

    def overlap_s(run: RunSpan, record: RecordSpan) -> float:
        nonlocal n_calls
        n_calls += 1
        return original(run, record)

    monkeypatch.setattr(match, "_overlap_s", overlap_s)
    runs = [_run(n, 1000 + 100 * n, 1090 + 100 * n) for n in range(1000)]
    records = [_record(1000 + 100 * n, 1090 + 100 * n, restart=n) for n in range(1000)]
    # Forged records are long, and cannot be matched to runs by their order.
    forged = [_record(0, 10**9, restart=10**6 + n) for n in range(5000)]
    assert _all_found(runs, *records, *forged)[:1000] == list(range(1000))
    assert n_calls <= 1_500_000, "all runs for all records are six millions"


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 200), st.sampled_from((None, 0, 1, 2)), st.booleans()),
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 300), st.integers(0, 3)), max_size=4),
    st.integers(0, 2),
)
def test_the_run_is_the_one_that_looking_at_all_finds(
    spans: list[tuple[int, int, int | None, bool]], seen: list[tuple[int, int, int]], missing: int
) -> None:
    runs = [
        _run(n, start, None if n == 5 else start + length, "n1,n2" if both else "n2", restart)
        for n, (start, length, restart, both) in enumerate(sorted(spans, key=lambda span: span[0]))
    ]
    find = match._Finder(runs, missing, {"n1"})
    for first_s, length_s, restart in seen:
        record = _record(first_s, first_s + length_s, restart=restart)
        assert find.run_id(record) == _by_looking_at_all(runs, record, missing)


def _by_looking_at_all(runs: list[RunSpan], record: RecordSpan, missing: int) -> int | None:
    fits = [
        (index, run)
        for index, run in enumerate(runs)
        if record.node in run.nodes
        and (record.restart >= missing if run.restart is None else run.restart == record.restart)
    ]
    by_order = [
        (match._overlap_s(run, record), index, run)
        for index, run in fits
        if run.restart is not None or index + missing == record.restart
    ]
    likely = max(by_order, key=lambda item: item[:2], default=None)
    if likely is not None and likely[0] >= -match.ORDERED_SLACK_S:
        return likely[2].run_id
    near = [
        (overlap_s, index, run)
        for index, run in fits
        if (overlap_s := match._overlap_s(run, record)) > 0
        or run.restart is not None
        or index + missing >= record.restart
    ]
    best = max(near, key=lambda item: item[:2], default=None)
    return best[2].run_id if best is not None and best[0] >= -match.UNORDERED_SLACK_S else None


def test_a_reused_job_id_is_distinguished_by_time() -> None:
    runs = [_run(1, 1000, 1010), _run(2, 90_000, 90_100)]
    assert _found(runs, _record(90_000, 90_100, restart=0)) == 2


def test_time_decides_between_runs_with_the_same_restart_count() -> None:
    """Test a job ID that was reused within minutes after the end of the previous run."""
    runs = [_run(1, 1000, 1100, restart=0), _run(2, 1340, 2340, restart=0)]
    assert _all_found(runs, _record(1000, 1100), _record(1340, 2340)) == [1, 2]


@pytest.mark.parametrize("restart", [None, 0])
@pytest.mark.parametrize("off_s", [-20, 0, 20])
def test_a_run_without_an_end_is_over_when_its_id_is_reused(restart: int | None, off_s: int) -> None:
    runaway, again = _run(1, 1000, None, restart=restart), _run(2, 900_010, 901_000, restart=restart)
    before, after = _record(1000, 5000), _record(900_010 + off_s, 901_000 + off_s)
    assert _all_found([runaway, again], before, after) == [1, 2]
    requeued = _run(3, 901_100, 901_200, restart=None if restart is None else 1)
    last = _record(901_100 + off_s, 901_200 + off_s, restart=1)
    assert _all_found([runaway, again, requeued], before, after, last) == [1, 2, 3]
    assert _all_found([runaway, _run(4, 1030, None, restart=restart)], before) == [1], "seconds apart"


@given(
    gap_s=st.integers(2, 600),
    lengths_s=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    off_s=st.tuples(st.integers(-240, 240), st.integers(-240, 240)),
    restart=st.sampled_from([None, 0]),
)
def test_the_node_decides_for_an_id_reused_at_once_if_clocks_cannot(
    gap_s: int, lengths_s: tuple[int, int], off_s: tuple[int, int], restart: int | None
) -> None:
    """Test a killed slurmctld that starts the next run elsewhere and never reports the first run's end."""
    forgotten = _run(1, 1000, None, "n1,n2", restart)
    again = _run(2, 1000 + gap_s, 1000 + gap_s + lengths_s[1], "n3", restart)
    before = _record(1000 + off_s[0], 1000 + off_s[0] + lengths_s[0], node="n1")
    after = _record(again.start_s + off_s[1], again.end_s + off_s[1], node="n3")
    assert _all_found([forgotten, again], before, after) == [1, 2]


def test_another_node_or_another_time_is_no_match() -> None:
    assert _found([_run(1, 1000, 1010)], _record(1000, 1010, node="n2")) is None
    assert _found([_run(1, 1000, 1010)], _record(9000, 9010)) is None
    assert _found([_run(1, None, None)], _record(1000, 1010)) is None


def test_a_running_run_takes_records_up_to_now() -> None:
    assert _found([_run(1, 1000, None)], _record(1000, 99_000)) == 1


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 100)), max_size=5),
    st.integers(0, 500),
    st.randoms(),
)
def test_the_order_in_which_runs_are_known_does_not_matter(
    spans: list[tuple[int, int]], first_s: int, shuffler: random.Random
) -> None:
    runs = [_run(n, start, start + length) for n, (start, length) in enumerate(spans)]
    runs = [run for n, run in enumerate(runs) if run.start_s not in {other.start_s for other in runs[:n]}]
    record = _record(first_s, first_s + 20, restart=1)
    shuffled = list(runs)
    shuffler.shuffle(shuffled)
    assert _found(runs, record) == _found(shuffled, record)
