import random

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.match import RecordSpan, RunSpan, assign
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


def test_a_job_id_that_came_round_again_is_told_by_time() -> None:
    runs = [_run(1, 1000, 1010), _run(2, 90_000, 90_100)]
    assert _found(runs, _record(90_000, 90_100, restart=0)) == 2


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
