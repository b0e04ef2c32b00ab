"""Jobs that a reservation attracted continue after its end if its nodes are not reserved again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.wire.answers.reservation import ReservationState
from tests.controller.fakes import NOON_S
from tests.controller.reservations.building import JOB, ROW, WINDOW_S, Site

OVERLONG = replace(JOB, time_limit_s=2 * WINDOW_S)
# Seconds after the start of a test at which ROW's window ends.
END_S = WINDOW_S + 60


def test_a_job_that_would_end_with_it_continues_if_its_nodes_are_free() -> None:
    """Slurm ignores time limits when a reservation attracts jobs, even for jobs submitted earlier."""
    site = Site()
    site.run_for(60)
    site.slurm.jobs = [OVERLONG, replace(JOB, job_id=18), replace(OVERLONG, job_id=19, time_limit_s=None)]
    site.run_for(END_S - 60 - 310)
    assert site.slurm.removed_jobs == []
    site.run_for(300)
    assert site.slurm.removed_jobs == [17, 19]
    assert site.acted()[1:] == ["job continues beyond its reservation"] * 2


@pytest.mark.parametrize(
    ("from_s", "until_s", "nodes", "goes_on"),
    [
        (0, 60, "n2", False),
        (0, 60, "n3", True),
        (WINDOW_S + 60, WINDOW_S + 120, "n[1-2]", True),  # the job has ended by then
        (WINDOW_S - 120, WINDOW_S, "n[1-2]", False),
    ],
)
@pytest.mark.parametrize("sites_own", [True, False])
def test_a_job_ends_with_it_where_its_nodes_are_anothers_then(
    from_s: int, until_s: int, nodes: str, goes_on: bool, sites_own: bool
) -> None:
    end_s = NOON_S + END_S
    after = replace(ROW, id=4, user="bob", start_s=end_s + from_s, end_s=end_s + until_s, nodes=nodes)
    site = Site(ROW) if sites_own else Site(ROW, after)
    if sites_own:
        later = SlurmReservation("backup", end_s + from_s, end_s + until_s, nodes, frozenset({"root"}))
        site.slurm.there["backup"] = later
    site.run_for(60)
    site.slurm.jobs = [OVERLONG]
    site.run_for(END_S - 100)
    assert site.slurm.removed_jobs == ([17] if goes_on else [])


def test_a_job_that_cannot_be_removed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.run_for(60)
    site.slurm.jobs, site.slurm.refuses = [OVERLONG], "Invalid job id specified"
    site.run_for(END_S - 100)
    assert "job 17 will end with sg_3: " in caplog.text
    assert site.row.state is ReservationState.ACTIVE
