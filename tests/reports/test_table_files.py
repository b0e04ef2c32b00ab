"""Table files contain unchanged values and no text that a spreadsheet would compute."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figure import FigureTable, TableColumn
from slurm_gpu.reports.table_files import write_csv, write_parquet
from slurm_gpu.text.spreadsheet import defused
from tests.reports.page.example_figures import HOSTILE


def _table(names: tuple[str, ...]) -> FigureTable:
    n = len(names)
    return FigureTable(
        name="t",
        title="A table",
        columns=[
            TableColumn("who", "", "A category."),
            TableColumn("name", "", "Texts."),
            TableColumn("wait_h", "h", "Hours."),
            TableColumn("jobs", "", "A count."),
        ],
        data={
            "who": Category(names, np.arange(n, dtype=np.int32) - 1),
            "name": list(names),
            "wait_h": np.array([np.nan, 0.0, *np.linspace(0.1, 1, n - 2)]),
            "jobs": np.arange(n),
        },
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n@x", "＝1", '=cmd|"/c calc"!A1']
)
def test_formulas_start_with_an_apostrophe(text: str):
    assert defused(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "pytorch", "a=b", "train-7", "3", "'quoted", "한글"])
def test_other_text_is_left_as_it_is(text: str):
    assert defused(text) == text


def test_csv_contains_every_row_and_gaps_are_empty(tmp_path: Path):
    write_csv(_table(HOSTILE), tmp_path / "t.csv")
    rows = _rows(tmp_path / "t.csv")
    assert [row["name"] for row in rows] == [defused(name).replace("\ud800", "\ufffd") for name in HOSTILE]
    assert rows[0]["who"] == ""
    assert rows[1]["who"] == rows[0]["name"]
    assert [row["wait_h"] for row in rows[:2]] == ["", "0"]
    assert [int(row["jobs"]) for row in rows] == list(range(len(HOSTILE)))


def test_no_cell_of_a_csv_begins_a_formula_but_numbers(tmp_path: Path):
    write_csv(_table(HOSTILE), tmp_path / "t.csv")
    for row in _rows(tmp_path / "t.csv"):
        assert not any(row[column].startswith(tuple("=+-@\t\r\n")) for column in ("who", "name"))


def test_negative_numbers_stay_numbers(tmp_path: Path):
    table = FigureTable(
        name="t", title="T", columns=[TableColumn("x", "", "X.")], data={"x": np.array([-1.5, 2.0])}
    )
    write_csv(table, tmp_path / "t.csv")
    assert [row["x"] for row in _rows(tmp_path / "t.csv")] == ["-1.5", "2"]


def test_parquet_contains_unchanged_values_with_units(tmp_path: Path):
    write_parquet(_table(HOSTILE), tmp_path / "t.parquet")
    read = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert read["name"].to_pylist() == [name.replace("\ud800", "\ufffd") for name in HOSTILE]
    assert read["wait_h"].to_pylist()[:2] == [None, 0.0]
    assert read["who"].to_pylist()[:2] == [None, HOSTILE[0]]
    assert read.schema.field("wait_h").metadata == {b"unit": b"h", b"about": b"Hours."}


def test_an_empty_table_has_its_header(tmp_path: Path):
    table = FigureTable(name="t", title="T", columns=[TableColumn("x", "", "X.")], data={"x": []})
    write_csv(table, tmp_path / "t.csv")
    write_parquet(table, tmp_path / "t.parquet")
    assert (tmp_path / "t.csv").read_text() == '"x"\n'
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").num_rows == 0


def test_files_name_users_so_their_owner_alone_reads_them(tmp_path: Path):
    write_csv(_table(HOSTILE), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").stat().st_mode & 0o777 == 0o600


@given(st.text())
def test_any_text_is_read_back_less_its_apostrophe(text: str):
    shown = defused(text)
    assert shown in (text, f"'{text}")
    json.dumps(shown)
