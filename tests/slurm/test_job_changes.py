"""Test constraints of pending jobs as printed by squeue, and their changes by scontrol."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.job_changes import ConstrainedJob, ConstraintClient


class Commands:
    """A command that prints rows of (job, constraint, reason) with the requested delimiter."""

    def __init__(self, *rows: tuple[str, str, str], refuses: str = "") -> None:
        self.rows, self.refuses = rows, refuses
        self.asked: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        self.asked.append([*argv])
        if self.refuses and self.refuses in argv[2]:
            raise SlurmError("scontrol: Job is no longer pending execution")
        marks = re.findall(r"<\w+>", argv[-1])
        return "".join(
            "".join(f"{value}{mark}" for value, mark in zip(row, marks, strict=True)) + "\n"
            for row in self.rows
        )


def test_jobs_that_wait_with_their_constraints() -> None:
    commands = Commands(
        ("7", "(a|b)&[zone1|zone2]", "Resources"),
        ("8", "(null)", "ReqNodeNotAvail, UnavailableNodes:n1"),
        ("9", "a", "Priority"),
    )
    assert ConstraintClient(commands).pending({7, 8}) == [
        ConstrainedJob(7, "(a|b)&[zone1|zone2]", "Resources"),
        ConstrainedJob(8, "", "ReqNodeNotAvail, UnavailableNodes:n1"),
    ]


def test_an_empty_queue_has_no_jobs() -> None:
    assert ConstraintClient(Commands()).pending({7}) == []


def test_an_unreadable_reservation_is_an_error() -> None:
    def with_a_column_less(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        mark = re.findall(r"<\w+>", argv[-1])[0]
        return f"7{mark}a100{mark}\n"

    with pytest.raises(SlurmError, match="squeue printed 2 columns"):
        ConstraintClient(with_a_column_less).pending({7})


def test_many_jobs_are_changed_in_few_calls_despite_one_refusal() -> None:
    commands = Commands(refuses="=1,")
    with pytest.raises(SlurmError, match="no longer pending"):
        ConstraintClient(commands).write(range(1, 402), "a100")
    assert [argv[:2] for argv in commands.asked] == [["scontrol", "update"]] * 3
    assert [argv[2].count(",") + 1 for argv in commands.asked] == [200, 200, 1]
    assert all(argv[3] == "Features=a100" for argv in commands.asked)
