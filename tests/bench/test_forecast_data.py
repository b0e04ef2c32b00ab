"""The reader of bench/forecast.py uses no value from after the poll except the start of the job."""

import csv
from pathlib import Path

import numpy as np
import pytest

from bench.forecast_data import _ABOVE, read_folder

_KNOWN_LATER = (
    "partition_id_x",
    "alloc_nodes",
    "state",
    "priority_x",
    "elapsed_time",
    "end_time",
    "run_time_sec",
    "submit_wait_sec",
    "poll_wait_sec",
    "q_core_run_hours",
    "q_p_gpu_run_hours",
    "r_core_hours_above",
)
_ROW = {
    "submit_time": "2021-05-01 02:00:00",
    "eligible_time": "2021-05-01 02:00:01",
    "start_time": "2021-05-01 13:00:00",
    "poll_time": "2021-05-01 12:00:00",
    "partition_id_y": "18",
    "account_id": "7",
    "req_cpus": "8",
    "req_mem_total": "1000",
    "req_mem_per_cpu": "125",
    "time_limit_sec": "3600",
    "req_tres": "billing=1,cpu=8,gres/gpu:v100=2,mem=1000M,node=3",
    "priority_y": "0.0003",
    **dict.fromkeys(_ABOVE, "4"),
    **dict.fromkeys(_KNOWN_LATER, "1"),
}


def write(path: Path, *rows: dict[str, str]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(_ROW))
        writer.writeheader()
        writer.writerows(rows)


def test_a_row_is_read(tmp_path: Path):
    write(tmp_path / "jobs_2021-05-01.csv", _ROW)
    samples = read_folder(tmp_path)
    feature = dict(zip(samples.names, samples.features[0], strict=True))
    assert feature["gpus"] == pytest.approx(np.log2(3))
    assert feature["nodes"] == pytest.approx(2)
    assert feature["waited"] == pytest.approx(np.log2(36001))
    assert samples.start_s[0] - samples.at_s[0] == 3600


def test_columns_that_came_later_change_nothing(tmp_path: Path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, value in ((one, "1"), (other, "987654")):
        folder.mkdir()
        write(folder / "jobs_2021-05-01.csv", _ROW | dict.fromkeys(_KNOWN_LATER, value))
    np.testing.assert_array_equal(read_folder(one).features, read_folder(other).features)


def test_a_later_eligible_time_is_not_used(tmp_path: Path):
    write(
        tmp_path / "jobs_2021-05-01.csv",
        _ROW | {"eligible_time": "2021-05-01 12:10:00"},
        _ROW | {"eligible_time": "2021-05-01 12:50:00"},
    )
    samples = read_folder(tmp_path)
    np.testing.assert_array_equal(samples.features[0], samples.features[1])
    assert np.isnan(samples.features[0, samples.names.index("eligible")])
