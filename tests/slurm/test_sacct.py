"""sacct output is parsed into runs; other text is logged."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm import sacct
from slurm_gpu.slurm.client import AccountingRun
from tests.slurm.printed import MARK, NAMES, text_of


@pytest.fixture(autouse=True)
def _clear_reported() -> None:
    sacct._log_row_once.cache_clear()
    sacct._logged_columns.clear()


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def read(text: str, size: int = 1 << 16) -> list[AccountingRun]:
    return list(sacct.parse_rows(pieces(text, size), NAMES, MARK))


_FREE = st.text(max_size=30) | st.sampled_from(["\n", "\n17", "\n17\n", "a\n18_3", "|", MARK[:-1], MARK[1:]])


@given(
    rows=st.lists(st.fixed_dictionaries({"JobName": _FREE, "AdminComment": _FREE}), max_size=6),
    size=st.integers(1, 400),
)
def test_rows_with_any_text_are_read_in_pieces_of_any_size(rows: list[dict[str, str]], size: int) -> None:
    found = [(run.name, run.admin_comment) for run in read(text_of(rows), size)]
    assert found == [(row["JobName"], row["AdminComment"]) for row in rows]


_WORDS = {
    "JobID": ["17", "16_3", "17_[1-3]", "16+1"],
    "UID": ["1001", ""],
    "State": ["COMPLETED", "CANCELLED by 1001"],
    "Eligible": ["1700000000", "Unknown", "0"],
    "End": ["1700000100", "Unknown"],
    "TimelimitRaw": ["60", "UNLIMITED"],
    "NodeList": ["n1", "None assigned"],
    "AllocTRES": ["cpu=1,gres/gpu=1", ""],
}


@given(rows=st.lists(st.fixed_dictionaries({name: st.sampled_from(some) for name, some in _WORDS.items()})))
def test_rows_are_the_same_together_and_alone(rows: list[dict[str, str]]) -> None:
    assert read(text_of(rows)) == [run for one in rows for run in read(text_of([one]))]


@given(
    before=st.integers(0, 4),
    after=st.integers(1, 4),
    column=st.sampled_from([name for name in NAMES if name not in ("Cluster", "JobName")]),
    value=st.text(max_size=12)
    | st.sampled_from(["9" * 400, "9" * 5000, "²", "-1", "1_0", " 7", "mem=", "="]),
    size=st.integers(1, 400),
)
def test_a_bad_required_value_removes_only_its_row(
    before: int, after: int, column: str, value: str, size: int
) -> None:
    rows = [{"JobID": f"{n}", "JobIDRaw": f"{n}"} for n in range(1, before + after + 1)]
    rows.insert(before, {"JobID": "99", "JobIDRaw": "99", column: value})
    found = [run.job_id for run in read(text_of(rows), size) if run.job_id <= before + after]
    assert found[:before] == list(range(1, before + 1))
    assert set(found) == set(range(1, before + after + 1))


@given(
    n_rows=st.integers(2, 6),
    cut=st.integers(0, 10_000),
    length=st.integers(1, 700),
    size=st.integers(1, 400),
)
def test_damaged_text_removes_only_the_rows_it_touches(n_rows: int, cut: int, length: int, size: int) -> None:
    """Remove a part of the text; the rest of the damaged rows may form at most one valid row."""
    rows = [{"JobID": f"{n}", "JobIDRaw": f"{n}"} for n in range(1, n_rows + 1)]
    whole = [text_of([row]) for row in rows]
    text = "".join(whole)
    start = cut % len(text)
    begins = [sum(map(len, whole[:n])) for n in range(n_rows + 1)]
    untouched = {n + 1 for n in range(n_rows) if begins[n + 1] <= start or begins[n] > start + length}
    try:
        found = {run.job_id for run in read(text[:start] + text[start + length :], size)}
    except SlurmError:
        found = set()
    assert untouched <= found


@given(text=st.text() | st.lists(st.sampled_from([MARK, "\n", "17", "x", "\n17"])).map("".join))
@settings(max_examples=200)
def test_any_text_is_parsed_or_logged(text: str) -> None:
    try:
        found = read(text)
    except SlurmError:
        return
    assert found == [] or MARK in text


def test_a_bad_row_is_logged_once_with_its_text(caplog: pytest.LogCaptureFixture) -> None:
    text = text_of([{}, {"JobID": "18", "JobIDRaw": "18", "JobName": "a\n\x1b[2J", "Submit": "Unknown"}])
    for _ in range(2):
        assert [run.job_id for run in read(text)] == [17]
    (message,) = caplog.messages
    assert "job 18, Submit: 'Unknown' is not a whole number" in message
    assert r"18|lab|18|a\n\x1b[2J|alice|1001|" in message
    assert "\x1b" not in message


_TEXTS = {"JobName", "User", "Account", "QOS", "Partition", "State", "ExitCode", "AdminComment"}
_TEXTS |= {"NodeList", "SLUID"}


@pytest.mark.parametrize("column", sorted(set(NAMES) - {"JobID", "JobIDRaw", "Cluster", "Submit"}))
@pytest.mark.parametrize("value", ["?", "-1", "-00:00:05", "9" * 400, "1e400", "cpu=x", "\ufffd"])
def test_a_bad_optional_column_is_left_out_of_its_row(
    caplog: pytest.LogCaptureFixture, column: str, value: str
) -> None:
    good, job = read(text_of([{}, {"JobID": "18", "JobIDRaw": "18"}]))
    bad = [{"JobID": str(n), "JobIDRaw": str(n), column: value} for n in range(18, 40)]
    found = read(text_of([{}, *bad]))
    assert found[0] == good
    assert [run.job_id for run in found] == list(range(17, 40))
    field, _ = {**sacct._COLUMNS, **sacct._OPTIONAL}[column]
    assert found[1]._replace(**{field: None}) == job._replace(**{field: None})
    assert len(caplog.messages) == (column not in _TEXTS)
    assert all(f"job 18, {column}: " in message for message in caplog.messages)


def test_an_unreadable_column_is_calculated_from_others() -> None:
    row = {"Start": "1700000010", "End": "1700000110", "NodeList": "n[1-3]", "NNodes": "-1"}
    (run,) = read(text_of([{**row, "Suspended": "-00:00:10", "ElapsedRaw": "60"}]))
    assert (run.elapsed_s, run.suspended_s, run.n_nodes) == (60, 40, 3)
    (run,) = read(text_of([{**row, "Suspended": "00:00:40", "ElapsedRaw": "-7"}]))
    assert (run.elapsed_s, run.suspended_s, run.n_nodes) == (60, 40, 3)


@pytest.mark.parametrize(
    ("words", "elapsed_s", "suspended_s"),
    [
        ({"Suspended": "?", "ElapsedRaw": "?"}, None, None),
        ({"Suspended": "?", "End": "Unknown", "State": "RUNNING"}, 100, None),
        ({"ElapsedRaw": "-7", "End": "Unknown", "State": "RUNNING"}, None, 0),
        ({"ElapsedRaw": "?", "Start": "999999999999999"}, None, 0),
    ],
)
def test_an_unreadable_column_without_others_is_none(
    words: dict[str, str], elapsed_s: int | None, suspended_s: int | None
) -> None:
    (run,) = read(text_of([words]))
    assert (run.elapsed_s, run.suspended_s, run.job_id) == (elapsed_s, suspended_s, 17)


@pytest.mark.parametrize("value", ["999999999999999", "Unknown", "-1"])
def test_an_unreadable_submit_time_removes_only_its_row(caplog: pytest.LogCaptureFixture, value: str) -> None:
    text = text_of([{}, {"JobID": "18", "JobIDRaw": "18", "Submit": value}])
    assert [run.job_id for run in read(text)] == [17]
    (message,) = caplog.messages
    assert f"job 18, Submit: {value}" in message.replace("'", "")


def test_many_bad_rows_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    text = text_of([{}, *({"JobID": f"{n}", "JobIDRaw": "?", "NNodes": "?"} for n in range(1000))])
    for _ in range(2):
        assert len(read(text)) == 1
    assert len(caplog.messages) == 21
    assert "1000 rows cannot be read" in caplog.messages[-1]


def test_a_row_that_lost_a_column_does_not_shift_the_others(caplog: pytest.LogCaptureFixture) -> None:
    text = text_of([{"JobID": f"{n}", "JobIDRaw": f"{n}"} for n in (1, 2, 3)])
    damaged = text.replace(f"2{MARK}lab{MARK}", f"2{MARK}")
    assert [run.job_id for run in read(damaged)] == [1, 3]
    assert "not a row of 23 columns" in caplog.text
    assert f"2{MARK}2{MARK}train" in caplog.text


def test_output_without_any_row_is_an_error() -> None:
    with pytest.raises(SlurmError, match="not a row of 23 columns"):
        read("sacct: error: something that went to the wrong place\n")
    assert read("") == []
    assert read("\n") == []


@pytest.mark.parametrize(
    ("shown", "array", "het"),
    [
        ("17", (None, None), (None, None)),
        ("16_3", (16, 3), (None, None)),
        ("17_[1-3%2]", (17, None), (None, None)),
        ("17_[0-99,200]", (17, None), (None, None)),
        ("16+1", (None, None), (16, 1)),
        ("16_3+1", (16, 3), (16, 1)),
    ],
)
def test_ids_of_arrays_and_heterogeneous_jobs(
    shown: str, array: tuple[int | None, int | None], het: tuple[int | None, int | None]
) -> None:
    (run,) = read(text_of([{"JobID": shown}]))
    assert (run.array_job_id, run.array_task) == array
    assert (run.het_job_id, run.het_offset) == het
    assert run.job_id == 17


@pytest.mark.parametrize("logger", ["slurm_gpu.slurm.sacct"])
def test_good_rows_are_not_logged(caplog: pytest.LogCaptureFixture, logger: str) -> None:
    caplog.set_level(logging.DEBUG, logger)
    assert len(read(text_of([{}] * 3))) == 3
    assert not caplog.messages
