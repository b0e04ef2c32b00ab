"""In forecasts, a pending array counts as the sum of its tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.forecasts.runs import MOST_TASKS, queue_runs
from tests.database.samples import T0, queued


@given(st.lists(st.integers(1, 5 * MOST_TASKS), min_size=1, max_size=3))
def test_tasks_of_arrays_of_any_size_add_up(sizes: list[int]) -> None:
    tres = {"cpu": 4.0, "mem": 1000.0, "gres/gpu": 2.0}
    jobs = [
        queued(
            job_id=number,
            array_job_id=number,
            array_task=f"0-{n - 1}",
            n_tasks=n,
            state="PENDING",
            eligible_s=T0,
            start_s=None,
            nodes=(),
            tres_requested=tres,
            tres_allocated={},
        )
        for number, n in enumerate(sizes, 1)
    ]
    runs = queue_runs(jobs, T0 + 10)
    assert len(runs) <= MOST_TASKS * len(sizes)
    assert runs.gpus.sum() == pytest.approx(2 * sum(sizes))
    assert runs.cores.sum() == pytest.approx(4 * sum(sizes))
    assert runs.memory_mib.sum() == pytest.approx(1000 * sum(sizes))
    assert set(runs.nodes.tolist()) == {float(jobs[0].n_nodes)}
