"""snapshot.txt is read as written, and an incomplete file is never accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.queue.usage import RunningAndPending, Subject, Usage, UsageTotals
from slurm_gpu.controller.run_file import write_run_file
from slurm_gpu.controller.snapshot.snapshot_file import (
    FRESH_S,
    QueryTiming,
    Snapshot,
    last_generation,
    parse,
    read_fresh,
    render,
)
from slurm_gpu.controller.snapshot.zones import ZoneCapacity
from slurm_gpu.errors import OutsideError

from .fakes import NOON_S

names = st.text(min_size=1, max_size=8)
counts = st.integers(0, 10**9)
quarters = st.integers(0, 10**7).map(lambda n: n / 4)
uses = st.builds(
    UsageTotals,
    counts,
    counts,
    counts,
    counts,
    counts,
    st.dictionaries(names, st.integers(1, 10**9), max_size=2),
)
subjects = st.one_of(
    st.builds(Subject, names, st.none(), st.none()),
    st.builds(Subject, names, names, st.none()),
    st.builds(Subject, st.none(), names, st.none()),
    st.builds(Subject, st.none(), names, names),
)
snapshots = st.builds(
    Snapshot,
    generation=counts,
    as_of_s=counts,
    groups_id=st.none() | st.text("0123456789abcdef", min_size=16, max_size=16),
    usage=st.builds(
        Usage,
        st.dictionaries(subjects, st.builds(RunningAndPending, uses, uses, st.none() | counts), max_size=4),
        st.dictionaries(names, counts, max_size=3),
    ),
    seen=st.dictionaries(st.text("0123456789abcdefx", min_size=1), counts, max_size=3),
    timing=st.none() | st.builds(QueryTiming, quarters, quarters, st.just("6f3c-91")),
    zones=st.lists(st.builds(ZoneCapacity, names, st.none() | names, counts, counts), max_size=2).map(tuple),
)


def example(**changes: object) -> Snapshot:
    usage = Usage(
        {
            Subject("alice", None): RunningAndPending(
                UsageTotals(3, 12000, 96, 786432, 3, {"a100": 12000}),
                UsageTotals(5, 20000),
                last_pending=4711,
            ),
            Subject(None, "grads", "lab 1"): RunningAndPending(UsageTotals(1)),
        },
        {"alice": 1001},
    )
    values: dict[str, object] = {"generation": 7, "as_of_s": NOON_S, "groups_id": "ab", "usage": usage}
    return Snapshot(**(values | changes))  # type: ignore[arg-type]


def test_the_file_has_the_form_of_the_contract() -> None:
    snapshot = example(
        hours={Subject("alice", None): {"gpu_h_week": 410.25, "gpu_h_day": 0.0, "cpu_h_month": 99.5}},
        period_starts={"gpu_h_day": 3, "gpu_h_week": 2, "cpu_h_month": 1},
        seen={"f00x1": 4},
        zones=(ZoneCapacity("zone 1", None, 12000, 1),),
        timing=QueryTiming(35412.349, 0.081, "6f3c"),
    )
    assert render(snapshot).splitlines() == [
        f"slurm-gpu-snapshot 1 7 {NOON_S}",
        "groups ab",
        "looked 35412.34 0.09 6f3c",
        "hours day=3 week=2 cpu_h_month=1",
        "use account:lab%201@grads jobs_run=1",
        "use user:alice jobs_run=3 mgpu_run=12000 cpus_run=96 mib_run=786432 nodes_run=3"
        " mgpu_run:a100=12000 jobs_pend=5 mgpu_pend=20000 last_pend=4711 gpu_h_week=410.250"
        " cpu_h_month=99.500",
        "user alice 1001",
        "seen f00x1 4",
        "zone zone%201 - 12000 1",
        "end 7",
    ]


@given(snapshots)
def test_a_written_snapshot_is_read_unchanged(snapshot: Snapshot) -> None:
    text = render(snapshot)
    assert text.isascii()
    assert parse(text) == snapshot


@given(snapshots, st.data())
def test_a_part_is_never_taken_for_the_whole(snapshot: Snapshot, data: st.DataObject) -> None:
    text = render(snapshot)
    part = text[: data.draw(st.integers(0, len(text) - 1))]
    with pytest.raises(ValueError):
        parse(part)


def test_unknown_hours_are_a_gap_and_no_hours_are_zero() -> None:
    assert parse(render(example())).hours_of("alice", None, "gpu_h_day") is None
    known = example(hours={}, period_starts={"gpu_h_day": 3, "cpu_h_month": 1})
    assert parse(render(known)).hours_of("alice", None, "gpu_h_day") == 0.0


def test_an_old_incomplete_or_missing_snapshot_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.txt"
    assert read_fresh(path, NOON_S) is None
    write_run_file(path, render(example()))
    assert read_fresh(path, NOON_S + FRESH_S) == example()
    assert read_fresh(path, NOON_S + FRESH_S + 1) is None
    path.write_text(render(example())[:-3])
    assert read_fresh(path, NOON_S) is None


def test_the_old_snapshot_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """The temporary file of a killed writer does not disturb the next writer."""
    path = tmp_path / "snapshot.txt"
    write_run_file(path, render(example()))
    (tmp_path / ".snapshot.txt.4194305.unfinished").write_text("slurm-gpu-snapshot 1 8 99\nuse user:al")
    assert read_fresh(path, NOON_S) == example()
    assert last_generation(path) == 7
    write_run_file(path, render(example(generation=8)))
    assert last_generation(path) == 8
    assert [entry.name for entry in tmp_path.iterdir()] == ["snapshot.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="No such file"):
        write_run_file(tmp_path / "gone" / "snapshot.txt", "")
