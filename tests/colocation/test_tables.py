"""Tables of measured speeds are read back as written, and errors are named."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.colocation.co_runner_views import speed_with_all, views_of
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.pair_file import write_csv, write_json
from slurm_gpu.colocation.tables.read import application_and_size, read_table, read_tables
from slurm_gpu.errors import InputError

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8) | st.sampled_from(
    ["=1+1", "'quoted'", "a, b", 'say "b"', "ResNet-18 (batch size 16)", "@x", "-1"]
)
ALONE = st.floats(1e-6, 1e9)


@st.composite
def tables(draw: st.DrawFn) -> Measured:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    speeds: dict[tuple[int, tuple[int, ...]], float] = {}
    every = [
        group for size in (2, 3) for group in itertools.combinations_with_replacement(range(len(names)), size)
    ]
    for group in draw(st.lists(st.sampled_from(every), unique=True)):
        if draw(st.booleans()):
            speeds |= dict.fromkeys(views_of(group), 0.0)
            continue
        for view in views_of(group):
            if draw(st.booleans()):
                speeds[view] = draw(st.floats(0.001, 1))
    alone = [draw(st.none() | ALONE) for _ in names]
    return Measured("V100 16GB", tuple(names), tuple(alone), speeds)


def by_name(table: Measured) -> tuple[Any, ...]:
    """Return a table's content, regardless of the order of its applications."""
    speeds = {
        (table.names[one], tuple(sorted(table.names[other] for other in others))): speed
        for (one, others), speed in table.speeds.items()
    }
    return table.gpu_model, dict(zip(table.names, table.alone_per_s, strict=True)), speeds


ROUND = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ROUND
@given(tables())
def test_csv_is_read_as_it_was_written(tmp_path: Path, table: Measured) -> None:
    write_csv(tmp_path / "t.csv", [table])
    assert by_name(read_table(tmp_path / "t.csv")) == by_name(table)


def test_csv_of_the_previous_release_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "gpu_model,application,alone_per_s,speed,beside_1\nV100,a,1,,\nV100,a,,0.5,b\n"
    )
    (tmp_path / "new.csv").write_text(f"{HEADER}\nV100,a,1,,\nV100,a,,0.5,b\n")
    assert by_name(read_table(tmp_path / "t.csv")) == by_name(read_table(tmp_path / "new.csv"))


@ROUND
@given(tables())
def test_json_is_read_as_it_was_written(tmp_path: Path, table: Measured) -> None:
    write_json(tmp_path / "t.json", table)
    again = read_table(tmp_path / "t.json")
    assert again.names == table.names
    assert again.alone_per_s == table.alone_per_s
    assert again.speeds == pytest.approx(dict(table.speeds), rel=1e-12)


def test_several_models_of_gpu_are_several_tables(tmp_path: Path) -> None:
    one = Measured("K80", ("a", "b"), (1.0, 2.0), {(0, (1,)): 0.5, (1, (0,)): 0.75})
    two = Measured("V100", ("b",), (9.0,), {(0, (0,)): 1.0})
    write_csv(tmp_path / "t.csv", [one, two])
    rows = {A: {"null": 1.0, B: [0.5, 1.5]}, B: {"null": 2.0}}
    written(tmp_path, {"K80": rows, "V100": {B: {"null": 9.0}}})
    for file in ("t.csv", "t.json"):
        assert [table.gpu_model for table in read_tables(tmp_path / file)] == ["K80", "V100"]
        assert read_table(tmp_path / file, "V100").names == ("b",)
        with pytest.raises(InputError, match="no GPU model 'A100'; available: K80, V100"):
            read_table(tmp_path / file, "A100")
        with pytest.raises(InputError, match="select one GPU model with --gpu-model"):
            read_table(tmp_path / file)


def gavel(**rows: Any) -> dict[str, Any]:
    return {"v100": {f"('{name}', 1)": row for name, row in rows.items()}}


def written(tmp_path: Path, decoded: Any) -> Path:
    path = tmp_path / "t.json"
    path.write_text(decoded if isinstance(decoded, str) else json.dumps(decoded))
    return path


A, B = "('a', 1)", "('b', 1)"


def test_a_speed_is_relative_to_alone_and_never_above_it(tmp_path: Path) -> None:
    table = read_table(
        written(tmp_path, gavel(a={"null": 10, B: [5, 30], A: [4, 6]}, b={"null": 20, A: [30, 5]}))
    )
    assert table.alone_per_s == (10, 20)
    assert dict(table.speeds) == {(0, (1,)): 0.5, (1, (0,)): 1.0, (0, (0,)): 0.5}


def test_impossible_pairs_differ_from_unmeasured_ones(tmp_path: Path) -> None:
    rows = gavel(a={"null": 10, B: [0, 0]}, b={"null": 20}, c={"null": 0, A: [0, 0]})
    table = read_table(written(tmp_path, rows))
    assert table.names == ("a", "b")
    speeds = table.table().speeds
    assert (speeds[0, 1], speeds[1, 0]) == (0, 0)
    assert np.isnan(speeds[0, 0])
    assert table.table().together((0, 1)) == (0, 0)
    with pytest.raises(KeyError, match="a with a"):
        table.table().together((0, 0))


def test_jobs_of_other_numbers_of_gpus_are_left_out(tmp_path: Path) -> None:
    rows = {"v100": {A: {"null": 1.0}, "('a', 2)": {"null": 2.0, "('a', 2)": [1, 1]}}}
    path = written(tmp_path, rows)
    assert read_table(path).speeds == {}


@pytest.mark.parametrize(
    ("decoded", "said"),
    [
        ("{", r"t\.json:1:2: is not JSON"),
        ("[1]", r"must be a JSON object"),
        ('{"v100": 3}', r"v100: 3 must be"),
        ('{"v100": {}, "v100": {}}', r'the key "v100" occurs twice'),
        (gavel(a={"null": math.nan}), r"NaN is not a JSON number"),
        ('{"v100": {"(\'a\', 1)": {"null": 1e999}}}', r"null: Infinity must be"),
        (gavel(a={}), r"\('a', 1\): null: null must be the steps per second"),
        (gavel(a={"null": -1}), r"-1 must be"),
        (gavel(a={"null": True}), r"true must be"),
        (gavel(a={"null": 10**400}), r"null: 1000"),
        ({"v100": {"a": {"null": 1}}}, r'the key "a" must be "\(\'application\', GPUs\)"'),
        ({"v100": {"('a', 1.5)": {"null": 1}}}, r"the key"),
        ({"v100": {"('a', True)": {"null": 1}}}, r"the key"),
        ({"v100": {"('a', 0)": {"null": 1}}}, r"the key"),
        ({"v100": {"__import__('os').system('true')": {"null": 1}}}, r"the key"),
        ({"v100": {"(" * 900: {"null": 1}}}, r"the key"),
        ({"v100": {"('a', 1)" + " " * 3000: {"null": 1}}}, r"the key"),
        (gavel(a={"null": 1, B: [1, 1]}), r"names an application that has no row"),
        (gavel(a={"null": 1, A: [1]}), r"\[1\] must be \[own steps per second"),
        (gavel(a={"null": 1, A: "1"}), r'"1" must be .own steps'),
        (gavel(a={"null": 1, A: [0, 1]}), r"must be set for both"),
        (gavel(a={"null": 1, A: [-1, -1]}), r"must be .own steps"),
        (gavel(a={"null": 1, B: [1, 1]}, b={"null": 1, A: [1, 0.5]}), r"in the other order"),
        (gavel(a={"null": 0, B: [1, 1]}, b={"null": 1}), r"must be \[0, 0\]"),
        ({"v100": {"('a\\n', 1)": {"null": 1}}}, r"printable"),
    ],
)
def test_errors_in_gavel_s_format_are_named(tmp_path: Path, decoded: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        read_table(written(tmp_path, decoded))
    assert "t.json" in str(raised.value)


OURS = {
    "format": "slurm-gpu speeds 1",
    "gpu_model": "A100",
    "applications": {"a": {"alone_per_s": 3}, "b": {"alone_per_s": None}},
    "together": [{"applications": ["a", "b", "a"], "speeds": [0.5, 0.25, 0.75]}],
}


def test_two_of_one_application_in_a_group_have_their_mean(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, OURS))
    assert table.speeds == {(0, (0, 1)): 0.625, (1, (0, 0)): 0.25}
    assert table.table().together((0, 1, 0)) == (0.625, 0.25, 0.625)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "speeds 9"}, r'format: "speeds 9" must be "slurm-gpu speeds 1"'),
        ({"gpu_model": 5}, r"gpu_model: 5 must be"),
        ({"aplications": {}}, r"aplications: is unknown"),
        ({"applications": ["a"]}, r'applications: \["a"\] must be'),
        ({"applications": {"a": 3}}, r"applications: a: 3 must be"),
        ({"applications": {"a": {"alone": 3}}}, r"must contain only alone_per_s"),
        ({"applications": {"a": {"alone_per_s": "3"}}}, r'"3" must be a number or null'),
        ({"applications": {"a": {"alone_per_s": 0}, "b": {}}}, r"'a' alone: 0.* must be more than 0"),
        ({"together": {}}, r"together: {} must be a list"),
        ({"together": [3]}, r"together\[0\]: 3 must be"),
        ({"together": [{"applications": ["a"], "speeds": [1]}]}, r"two or more names"),
        ({"together": [{"applications": ["a", "c"], "speeds": [1, 1]}]}, r'"c" must be one of'),
        ({"together": [{"applications": ["a", 4], "speeds": [1, 1]}]}, r"4 must be one of"),
        ({"together": [{"applications": ["a", "b"], "speeds": [1]}]}, r"2 applications have 1 speeds"),
        ({"together": [{"applications": ["a", "b"], "speeds": [1, "x"]}]}, r'speed "x" of \'b\' must be'),
        ({"together": [{"applications": ["a", "b"], "speeds": [1, 1.5]}]}, r"speed 1.5 must be from 0 to 1"),
        ({"together": [{"applications": ["a", "b"], "speeds": [0, 1]}]}, r"cannot run together"),
        ({"together": 2 * [{"applications": ["a", "b"], "speeds": [1, 1]}]}, r"\[1\]: 'a' with 'b' occurs"),
    ],
)
def test_errors_in_our_json_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_table(written(tmp_path, OURS | change))


HEADER = "gpu_model,application,alone_per_s,speed,co_runner_1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"t\.csv:1:1: is empty; the first line must be gpu_model,"),
        ("application,speed\n", r":1:1: the columns 'application,speed' must be gpu_model,"),
        (
            HEADER + ",co_runner_3\n",
            r"must be gpu_model,application,alone_per_s,speed,co_runner_1,co_runner_2",
        ),
        (f"{HEADER}\nV100,a,1\n", r":2:1: has 3 cells, but the first line has 5"),
        (f"{HEADER}\n,a,1,,\n", r":2:1: gpu_model and application must be given"),
        (f"{HEADER}\nV100,a,x,,\n", r":2:1: alone_per_s 'x' must be a number"),
        (f"{HEADER}\nV100,a,nan,,\n", r"'nan' must be a number"),
        (f"{HEADER}\nV100,a,1,,\nV100,a,1,,\n", r":3:1: 'a' without co-runners occurs twice"),
        (f"{HEADER}\nV100,a,,0.5,\n", r":2:1: 'a' without co-runners: speed '0.5' must be empty"),
        (f"{HEADER}\nV100,a,3,0.5,b\n", r"alone_per_s '3' belongs"),
        (f"{HEADER}\nV100,a,,,b\n", r":2:1: 'a' with 'b': speed '' must be a number"),
        (f"{HEADER}\nV100,a,,2,b\n", r":2:1: 'a' with 'b': speed '2' must be from 0 to 1"),
        (
            f"{HEADER}\nV100,a,,1e-300,b\n",
            r"'a' with 'b': speed 1e-300 must be 0 .cannot run together. or from 0.000001 to 1",
        ),
        (f"{HEADER}\nV100,a,,-0.1,b\n", r":2:1: 'a' with 'b': speed '-0.1' must be from 0 to 1"),
        (f"{HEADER}\nV100,a,0,,\n", r":2:1: 'a' alone: alone_per_s '0' must be more than 0"),
        (f"{HEADER}\nV100,a,1,,\nV100,a\x07,,1,b\n", r":3:1: the name 'a.x07' must have 1 to 512 printable"),
        (
            f"{HEADER}\nV100,b,,1,b\nV100,a,,0,b\n",
            r":3:1: 'a' with 'b': .* of 'b' is missing",
        ),
        (
            f"{HEADER}\nV100,a,,0,b\nV100,b,,0.3,a\n",
            r":2:1: 'a' with 'b': speed 0 means .* of 'b' in line 3 is not 0",
        ),
        (f"{HEADER}\nV100,a,,1,b\nV100,a,,1,b\n", r":3:1: 'a' with 'b': occurs twice"),
        (f'{HEADER}\nV100,"a,1,1,b\n', r"is not CSV"),
        (f"{HEADER}\nV100,a\udcff,,1,b\n", r"is not UTF-8"),
    ],
)
def test_errors_in_our_csv_are_named_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=said):
        read_table(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("t.csv", "t.json"):
        with pytest.raises(InputError, match=f"{name}: cannot be read: No such file"):
            read_table(tmp_path / name)


def test_groups_that_were_measured_count_before_what_their_pairs_predict() -> None:
    pairs = {(0, (0,)): 0.5, (0, (1,)): 0.8, (1, (0,)): 0.9, (1, (1,)): 0.4}
    triple = {(0, (0, 1)): 0.3, (1, (0, 0)): 0.7}
    table = Measured("x", ("a", "b"), (None, None), pairs | triple).table()
    assert table.together((0, 1, 0)) == (0.3, 0.7, 0.3)
    assert table.together((1, 0, 1)) == pytest.approx(
        (speed_with_all([0.9, 0.4]), speed_with_all([0.8, 0.8]), speed_with_all([0.4, 0.9]))
    )


def test_names_contain_the_batch_size_where_they_have_one() -> None:
    assert application_and_size("ResNet-18 (batch size 16)") == ("ResNet-18", 16)
    assert application_and_size("A3C") == ("A3C", None)
    assert application_and_size("x (batch size many)") == ("x (batch size many)", None)
