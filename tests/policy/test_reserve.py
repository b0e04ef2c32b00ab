"""Large jobs need a reservation where the site says so: who has one passes, others are told what to type."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.cli.reserve import request as ask
from slurm_gpu.config import Placement, Reservations
from slurm_gpu.controller.reserve.told import reserve_table
from slurm_gpu.database.reserve.reservation import Reservation, State

from .model import Request
from .render import PARTITIONS, description, record
from .test_place import Site, two_zones
from .users import NAMES

HELD = Reservation(
    id=3, cluster="lab", user=NAMES[1001], account="vision", partition="gpu", gpus=8, n_nodes=2,
    duration_s=3600, earliest_s=0, why="paper", state=State.APPROVED, requested_s=0, start_s=0, end_s=3600,
    nodes="n[1-2]",
)  # fmt: skip


class Reserving(Site):
    """A script beside a snapshot that tells of reservations."""

    def tell(self, *rows: Reservation, mode: str = "enforce", required: int | None = 8) -> None:
        self.show(two_zones(), mode)
        table = reserve_table(Placement(mode, reservations=Reservations(required)), rows)
        lines = "".join(f"{line}\n" for line in (table.lines() if table else ()))
        self.snapshot.write_text(self.snapshot.read_text().replace("\nplacement ", f"\n{lines}placement ", 1))


@pytest.fixture(params=["5.1", "5.4"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Reserving:
    return Reserving(tmp_path, request.param)


def gpus(count: int) -> Request:
    return Request(uid=1001, account="vision", per_node=count // 2, nodes=2)


def test_from_the_threshold_on_a_job_without_a_reservation_is_refused_and_told_what_to_type(
    site: Reserving,
) -> None:
    site.tell()
    assert site.submit(gpus(6)).accepted
    refused = site.submit(gpus(8), time_limit=36 * 60 + 5)
    assert not refused.accepted
    assert refused.messages == (
        "Refused by the rule on reservations: jobs of 8 GPUs and more have one, so that they",
        "  start when it was promised.",
        "  GPUs without a reservation: limit 7, requested 8.",
        "  Ask for one, and submit when it is approved:",
        "    slurm-gpu reserve request --gpus 8 --nodes 2 --time 1-12:05:00 --account vision "
        "--partition gpu --why …",
        "  Questions: gpu-help",
    )
    assert site.log.read_text().splitlines()[-1].count("rules=reservation:reservation:enforce") == 1


def test_what_it_says_can_be_typed(site: Reserving) -> None:
    site.tell()
    said = site.submit(gpus(8), time_limit=60).messages[-2]
    words = shlex.split(said.removeprefix("    slurm-gpu reserve request"))
    asked = ask.make_context("request", words).params
    assert (asked["gpus"], asked["nodes"], asked["duration_s"]) == (8, 2, 3600)


@pytest.mark.parametrize(
    "changes",
    [{}, {"gpus": 16}, {"state": State.ACTIVE}, {"account": "Vision"}, {"gpu_type": "a100"}],
)
def test_whoever_has_one_that_is_promised_passes(site: Reserving, changes: dict[str, object]) -> None:
    site.tell(replace(HELD, **changes))  # type: ignore[arg-type]
    assert site.submit(gpus(8)).accepted


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 7}, {"user": "somebody"}, {"account": "nlp"}, {"partition": "long"},
        {"state": State.REQUESTED}, {"state": State.RELEASED},
    ],
)  # fmt: skip
def test_anothers_or_a_smaller_one_or_one_that_is_not_promised_is_none(
    site: Reserving, changes: dict[str, object]
) -> None:
    site.tell(replace(HELD, **changes))  # type: ignore[arg-type]
    assert not site.submit(gpus(8)).accepted


def test_one_that_is_named_is_slurms_to_judge(site: Reserving) -> None:
    site.tell()
    assert site.submit(gpus(8), reservation="maint").accepted
    assert not site.submit(gpus(8), reservation="").accepted


def test_who_takes_a_large_job_out_of_the_reservation_that_it_named_needs_one_after_all(
    site: Reserving,
) -> None:
    site.tell()
    job = record(7, gpus(8))
    nothing = dict.fromkeys(description(gpus(8)))

    def update(**changes: str) -> bool:
        return site.script.modify({**nothing, **changes}, job, PARTITIONS, 1001).accepted

    assert update(name="x")
    assert not update(reservation="")
    assert update(reservation="sg_4")
    site.tell(HELD)
    assert update(reservation="")


def test_a_reservation_counts_from_the_next_snapshot_on_also_for_jobs_alike(site: Reserving) -> None:
    for rows, accepted in (((HELD,), True), ((), False), ((HELD,), True)):
        site.tell(*rows)
        assert [site.submit(gpus(8)).accepted for _ in range(3)] == [accepted] * 3


def test_observe_only_writes_it_down_and_advise_only_says_it(site: Reserving) -> None:
    site.tell(mode="advise")
    told = site.submit(gpus(8))
    assert told.accepted
    assert told.messages[0].startswith("Against the rule on reservations: jobs of 8 GPUs and more")
    assert "  This job is accepted all the same." in told.messages
    site.tell(mode="observe")
    assert site.submit(gpus(8)).messages == ()
    assert "rules=reservation:reservation:observe" in site.log.read_text().splitlines()[-1]


def test_while_slurm_gpuctld_does_not_tell_every_job_passes(site: Reserving) -> None:
    site.tell()
    assert not site.submit(gpus(8)).accepted
    site.now_s += 31
    assert site.submit(gpus(8)).accepted  # the snapshot is too old
    site.show(two_zones())
    assert site.submit(gpus(8)).accepted  # it says nothing of reservations
    site.tell(HELD, required=None)
    assert site.submit(replace(gpus(8), account="nlp")).accepted  # no job needs one


def test_a_job_that_goes_into_a_reservation_is_not_kept_in_a_zone(site: Reserving) -> None:
    site.tell(required=None)
    assert site.submit(gpus(8)).desc["features"] == "[zone2|zone1]"
    site.tell(HELD, required=None)
    assert "features" not in site.submit(gpus(8)).desc
    assert site.logged == "enforce:-:reservation"
    assert site.submit(replace(gpus(8), account="nlp")).desc["features"] == "[zone2|zone1]"
