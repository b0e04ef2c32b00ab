"""Host metrics of the last ten minutes are kept in memory and shown only to permitted users."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.live.host_minutes import SERIES, HostMinutes, alone_since
from slurm_gpu.database.live.node_memory import LATE_S, LiveBoard
from slurm_gpu.database.verdicts.job_series import host_series
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.codec import from_json, to_json
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.live import LIVE_INTERVAL_S
from tests.database.samples import T0, FakeClock, queued


def live(at_s: float, cpu_pct: float = 50.0, **host: float) -> Live:
    return Live(at_s=at_s, host={"cpu_pct": cpu_pct, **host})


class TestStorage:
    def test_ten_minutes_in_order_both_directions_together(self):
        minutes = HostMinutes()
        for n in range(200):
            network = {"net_rx_bytes_per_s": 100.0 * n, "net_tx_bytes_per_s": 1.0}
            minutes.put("n1", live(T0 + 10 * n, n, **network))
        found = minutes.of("n1", 0)
        assert found is not None
        assert found.at_s == tuple(T0 + 10.0 * n for n in range(140, 200))
        assert found.series["cpu"] == pytest.approx([n / 100 for n in range(140, 200)])
        assert found.series["network"] == pytest.approx([100.0 * n + 1 for n in range(140, 200)])
        assert "infiniband" not in found.series

    def test_a_missing_report_is_a_gap(self):
        minutes = HostMinutes()
        minutes.put("n1", live(T0))
        minutes.put("n1", Live(at_s=T0 + 10))
        minutes.put("n1", live(T0 + 20))
        found = minutes.of("n1", 0)
        assert found is not None
        assert found.series == {"cpu": (0.5, None, 0.5)}

    def test_only_what_was_since_then(self):
        minutes = HostMinutes()
        for n in range(6):
            minutes.put("n1", live(T0 + 10 * n))
        found = minutes.of("n1", T0 + 20)
        assert found is not None
        assert found.at_s == (T0 + 30, T0 + 40, T0 + 50)
        assert minutes.of("n1", T0 + 40) is None, "one value alone covers no time"
        assert minutes.of("n2", 0) is None

    def test_a_repeated_value_counts_once_and_a_clock_set_back_restarts(self):
        minutes = HostMinutes()
        for at_s in (T0, T0 + 10, T0 + 10, T0 + 5, T0 - 3600, T0 - 3590):
            minutes.put("n1", live(at_s))
        found = minutes.of("n1", 0)
        assert found is not None
        assert found.at_s == (T0 - 3600, T0 - 3590)

    def test_a_node_that_reports_often_takes_no_more_memory(self):
        minutes = HostMinutes()
        for n in range(5000):
            minutes.put("n1", live(T0 + 0.1 * n))
        found = minutes.of("n1", 0)
        assert found is not None
        assert len(found.at_s) <= 64

    def test_silent_nodes_are_dropped(self):
        clock = FakeClock(T0)
        board = LiveBoard(clock)
        for n in range(3):
            board.put("n1", live(T0 + 10 * n))
        assert [item.node for item in board.minutes(["n1", "n2"], 0)] == ["n1"]
        clock.now += LATE_S + LIVE_INTERVAL_S
        assert board.minutes(["n1"], 0) == []


class TestAccess:
    """Test access to the metrics of nodes from the time at which a job is alone on them."""

    def since(self, *others: Any, **own: Any) -> float | None:
        job = queued(job_id=1, nodes=("n1", "n2"), **own)
        return alone_since(job, {item.job_id: item for item in (job, *others)})

    def test_alone_since_its_start(self):
        assert self.since(queued(job_id=2, nodes=("n3",))) == T0

    @pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING"])
    def test_not_where_another_one_is_on_a_node(self, state):
        assert self.since(queued(job_id=2, nodes=("n2",), state=state)) is None

    def test_since_the_other_one_ended(self):
        over = queued(job_id=2, nodes=("n2",), state="COMPLETED", end_s=T0 + 100)
        assert self.since(over) == T0 + 100

    def test_one_that_waits_is_nowhere_yet(self):
        assert self.since(queued(job_id=2, nodes=("n2",), state="PENDING", start_s=T0 + 900)) == T0

    @pytest.mark.parametrize("state", ["PENDING", "SUSPENDED", "COMPLETED"])
    def test_one_that_does_not_run_has_none(self, state):
        assert self.since(state=state) is None


class TestBySeconds:
    def test_each_value_is_of_the_time_since_the_one_before(self):
        reported = NodeMinutes(node="n1", at_s=(100.0, 110.2, 119.9), series={"cpu": (0.1, None, 0.3)})
        course = host_series(reported)
        assert (course.start_s, course.width_s) == (90.0, 1.0)
        cpu = course.values[Metric.CPU]
        assert cpu[:10] == pytest.approx(np.full(10, 0.1))
        assert np.isnan(cpu[10:20]).all()
        assert cpu[20:] == pytest.approx(np.full(10, 0.3))

    def test_a_long_silence_is_a_gap(self):
        at_s = (*range(100, 160, 10), 400)
        course = host_series(NodeMinutes(node="n1", at_s=at_s, series={"network": (1.0,) * 7}))
        network = course.values[Metric.NETWORK]
        assert np.isfinite(network).sum() == 60 + 20

    @given(
        st.lists(st.floats(1.7e9, 1.7e9 + 3000), min_size=2, max_size=70, unique=True).map(sorted),
        st.data(),
    )
    def test_any_values_are_read_back_second_by_second(self, at_s, data):
        values = st.lists(st.none() | st.floats(0, 1e12), min_size=len(at_s), max_size=len(at_s))
        series = {name: tuple(data.draw(values)) for name in SERIES}
        reported = NodeMinutes(node="n1", at_s=tuple(at_s), series=series)
        assert from_json(NodeMinutes, to_json(reported)) == reported
        course = host_series(reported)
        assert {len(row) for row in course.values.values()} == {round(at_s[-1]) - round(course.start_s)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"at_s": None}, "cannot be read"),
        ({"at_s": [1, 2]}, "2 times, but these series have other lengths"),
        ({"at_s": [2, 1, 3]}, "times are not strictly ascending"),
        ({"series": {"cpu": ["much", 1, 2]}}, "cannot be read"),
        ({"series": [1]}, "cannot be read"),
    ],
)
def test_an_unreadable_answer_is_reported(changed, said):
    answer = {"node": "n1", "at_s": [1, 2, 3], "series": {"cpu": [0.1, None, 0.2]}}
    assert from_json(NodeMinutes, answer).series == {"cpu": (0.1, None, 0.2)}
    with pytest.raises(DatabaseError, match=said):
        from_json(NodeMinutes, answer | changed)
