"""The reader of bench/forecast.py uses no later value except the start, and rejects other formats."""

import csv
import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from bench.forecast_data import _ABOVE, read_folder
from slurm_gpu.errors import InputError

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


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=8,gres/gpu:v100=2,gres/gpu:p100=1", 3),
        ("cpu=8,gres/gpu=2,gres/gpu:v100=2", 2),
        ("cpu=8,gres/gpumem=40G", 0),
        ("", 0),
    ],
)
def test_gpus_are_counted_once(tmp_path: Path, tres: str, gpus: int):
    write(tmp_path / "jobs.csv", _ROW | {"req_tres": tres})
    samples = read_folder(tmp_path)
    assert samples.features[0, samples.names.index("gpus")] == pytest.approx(np.log2(gpus + 1))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"partition_id_y": "gpu"}, "partition_id_y 'gpu' is not a number"),
        ({"req_cpus": "inf"}, "req_cpus 'inf' is not a number"),
        ({"start_time": "Unknown"}, "start_time 'Unknown' is not a time such as 2021-05-01 12:00:00"),
        ({"submit_time": "1619834400"}, "submit_time '1619834400' is not a time"),
        ({"submit_time": "2021-13-01 02:00:00"}, "submit_time '2021-13-01 02:00:00' is not a time"),
        ({"poll_time": "2021-05-01 12:00:00Z"}, "poll_time '2021-05-01 12:00:00Z' is not a time"),
        ({"poll_time": ""}, "poll_time is empty"),
        ({"submit_time": ""}, "submit_time is empty"),
        ({"poll_time": "2021-05-01 12:00:01"}, "poll_time differs from that of the first job"),
        ({"start_time": "2021-05-01 12:00:00"}, "the job was not pending at poll_time 2021-05-01 12:00:00"),
        ({"submit_time": "2021-05-01 12:00:01"}, "the job was not pending at poll_time 2021-05-01 12:00:00"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(tmp_path: Path, values: dict[str, str], problem: str):
    path = tmp_path / "jobs.csv"
    write(path, _ROW, _ROW | values)
    with pytest.raises(InputError, match=re.escape(f"{path}:3:1: {problem}")):
        read_folder(tmp_path)


def test_a_job_without_a_start_and_a_byte_order_mark_are_read(tmp_path: Path):
    path = tmp_path / "jobs.csv"
    write(path, _ROW | {"start_time": ""})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert np.isnan(read_folder(tmp_path).start_s).all()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("jobs.csv", b"", ":1:1: '' is not a list of columns separated by commas"),
        ("jobs.csv", b"JobID|Submit|Start\n", ":1:1: 'JobID|Submit|Start' is not a list of columns"),
        (
            "jobs.csv",
            b"JobID,submit_time\n",
            ":1:1: missing columns: eligible_time, start_time, poll_time,",
        ),
        ("jobs.csv", b"\xfc", ": cannot be read: 'utf-8' codec"),
        ("jobs.csv.gz", b"submit_time\n", ": cannot be read: Not a gzipped file"),
        (
            "jobs.csv.gz",
            gzip.compress(b"submit_time\n", mtime=0)[:-9],
            ": cannot be read: Compressed file ended before",
        ),
    ],
)
def test_a_file_in_another_format_is_named(tmp_path: Path, name: str, content: bytes, problem: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(name + problem)):
        read_folder(tmp_path)


def test_a_shorter_line_is_named(tmp_path: Path):
    path = tmp_path / "jobs.csv"
    write(path, _ROW)
    with path.open("a") as file:
        file.write("2021-05-01 02:00:00,1\n")
    with pytest.raises(InputError, match=rf":3:1: 2 values for the {len(_ROW)} columns of line 1"):
        read_folder(tmp_path)


def test_a_folder_without_jobs_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="is not a folder"):
        read_folder(tmp_path / "other")
    with pytest.raises(InputError, match=r"contains no file \*.csv or \*.csv.gz"):
        read_folder(tmp_path)
    write(tmp_path / "jobs.csv")
    with pytest.raises(InputError, match="no file contains a job"):
        read_folder(tmp_path)
