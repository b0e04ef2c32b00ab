"""Jobs drawn from a pair table are of their class, and the same for the same seed."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from slurm_gpu.colocation.research.workloads import TABLE, table_jobs, table_world
from slurm_gpu.colocation.simulation.simulator import simulate
from slurm_gpu.colocation.tables.measured import Measured
from tests.colocation.building import OneAtATime


def table() -> Measured:
    """Return six applications, each slowing others more than the previous; the last must run alone."""
    names = tuple(f"app{i}" for i in range(6))
    speeds: dict[tuple[int, tuple[int, ...]], float] = {}
    for i, j in combinations_with_replacement(range(6), 2):
        speeds[i, (j,)] = 0.0 if j == 5 else 1 - j / 10
        speeds[j, (i,)] = 0.0 if j == 5 else 1 - i / 10
    return Measured("card", names, (None,) * 6, speeds)


@pytest.mark.parametrize("workload", TABLE)
def test_workloads_of_a_pair_table_are_of_their_class(workload: str) -> None:
    measured = table()
    jobs = table_jobs(measured, workload, 5)
    assert jobs == table_jobs(measured, workload, 5) != table_jobs(measured, workload, 6)
    drawn = [job.application for job in jobs]
    assert len(drawn) == 30
    assert all(60 <= job.work_s <= 600 for job in jobs)
    match workload:
        case "heavy":
            assert set(drawn) <= {3, 4, 5}
        case "light":
            assert set(drawn) <= {0, 1, 2}
        case "mixed":
            assert set(drawn[::2]) <= {3, 4, 5}
            assert set(drawn[1::2]) <= {0, 1, 2}
        case "sweep":
            assert len(set(drawn)) <= 3
    assert simulate(table_world(measured), jobs, OneAtATime()).out_of_memory == 0
    assert np.isinf(table_world(measured).capacity_mib)


def test_an_unknown_workload_of_a_table_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown workload 'big' of a pair table; available: .*'sweep'"):
        table_jobs(table(), "big", 1)
