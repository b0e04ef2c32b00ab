"""A GPU becomes a suspect if jobs of several users accuse it, unless enough other jobs ran well on it."""

from __future__ import annotations

from typing import Any

from slurm_gpu.alerts.suspects import Statement, drain, suspects

NOW_S = 1_795_000_000.0
GPU, OTHER_GPU = ("n1", "GPU-3"), ("n1", "GPU-4")


def statement(job: int, user: str = "alice", *, accuses: bool = True, **given: Any) -> Statement:
    """Build a statement that is an hour old and, by default, accuses the device GPU."""
    values = {
        "job": str(job),
        "user": user,
        "at_s": NOW_S - 3600,
        "since_s": NOW_S - 4000,
        "accuses": accuses,
        "n_gpus": 16.0,
        "devices": [GPU],
    }
    return Statement(**{**values, **given})


def named(*said: Statement) -> list[tuple[str, str | None, int, int]]:
    return [(one.node, one.device, one.jobs, one.users) for one in suspects(said, NOW_S)]


THREE = (statement(1), statement(2, "bob"), statement(3))


def test_three_jobs_of_two_users_make_a_suspect():
    assert named(*THREE) == [("n1", "GPU-3", 3, 2)]


def test_jobs_of_one_user_are_not_enough_however_many():
    assert named(*(statement(job) for job in range(20))) == []


def test_two_jobs_are_too_few():
    assert named(statement(1), statement(2, "bob")) == []


def test_a_job_counts_once_however_often_it_accuses():
    assert named(statement(1), statement(1), statement(2, "bob")) == []


def test_later_healthy_jobs_exonerate_a_gpu():
    well = statement(9, "carol", accuses=False, at_s=NOW_S - 60)
    assert named(*THREE, well) == []
    assert named(*THREE, statement(4, "bob"), well) == [("n1", "GPU-3", 4, 2)]


def test_jobs_that_were_well_before_or_elsewhere_do_not():
    before = statement(9, "carol", accuses=False, at_s=NOW_S - 7200)
    elsewhere = statement(8, "carol", accuses=False, at_s=NOW_S - 60, devices=[OTHER_GPU])
    assert named(*THREE, before, elsewhere) == [("n1", "GPU-3", 3, 2)]


def test_a_job_that_accused_a_gpu_cannot_exonerate_it():
    assert named(*THREE, statement(1, accuses=False, at_s=NOW_S - 60)) == [("n1", "GPU-3", 3, 2)]


def test_a_job_that_accuses_most_of_its_gpus_does_not_count():
    assert named(*(statement(job, f"u{job}", n_gpus=1.0) for job in range(9))) == []


def test_old_accusations_do_not_count():
    assert named(*THREE[:2], statement(3, at_s=NOW_S - 15 * 86400)) == []


def test_a_node_is_reported_where_no_gpu_alone_is_accused_often_enough():
    assert named(statement(1), statement(2, "bob", devices=[OTHER_GPU]), statement(3)) == [("n1", None, 3, 2)]
    elsewhere = statement(2, "bob", devices=[("n2", "GPU-9")])
    assert named(statement(1), elsewhere, statement(3)) == []


def test_since_when_is_of_the_first_that_accused_it():
    (one,) = suspects([*THREE, statement(4, since_s=NOW_S - 9000)], NOW_S)
    assert (one.first_s, one.last_s) == (NOW_S - 9000, NOW_S - 3600)


def test_the_next_step_is_one_command_with_its_reason():
    said = "slurm-gpu: GPU 3 slow or failing in 4 jobs of 2 users"
    assert drain("n1", 3, 4, 2) == f'scontrol update nodename=n1 state=drain reason="{said}"'
