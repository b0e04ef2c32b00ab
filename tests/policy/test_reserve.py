"""Large jobs may need a reservation; a job without one is refused with the command that requests it."""

from __future__ import annotations

import importlib
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.cli.reserve.group import request as ask
from slurm_gpu.config.site import Placement, Reservations
from slurm_gpu.controller.snapshot.reserve_table import reserve_table
from slurm_gpu.policy.lua.bundle import lua_directory
from slurm_gpu.policy.lua.script import Considered, PolicyScript
from slurm_gpu.slurm.job_desc import NO_VAL
from slurm_gpu.text.hostlist import compress, expand
from slurm_gpu.wire.answers.reservation import Reservation, ReservationState

from .model import Request
from .render import PARTITIONS, description, record
from .test_place import NOW_S, Site, two_zones
from .users import NAMES

APPROVED_RESERVATION = Reservation(
    id=3,
    cluster="lab",
    user=NAMES[1001],
    account="vision",
    partition="gpu",
    gpus=8,
    n_nodes=2,
    duration_s=3600,
    earliest_s=0,
    why="paper",
    state=ReservationState.APPROVED,
    requested_s=0,
    start_s=0,
    end_s=3600,
    nodes="n[1-2]",
)
# The reservation ends more than an hour after Site.show, which advances the clock by half a minute.
BEGUN = replace(APPROVED_RESERVATION, start_s=NOW_S - 60, end_s=NOW_S + 3600 + 31 * 60)


class Reserving(Site):
    """A script with a snapshot that has reservations."""

    def show_reservations(self, *rows: Reservation, mode: str = "enforce", required: int | None = 8) -> None:
        self.show(two_zones(), mode)
        table = reserve_table(Placement(mode, reservations=Reservations(required)), rows)
        lines = "".join(f"{line}\n" for line in (table.lines() if table else ()))
        self.snapshot.write_text(self.snapshot.read_text().replace("\nplacement ", f"\n{lines}placement ", 1))


@pytest.fixture(params=["5.1", "5.4"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Reserving:
    return Reserving(tmp_path, request.param)


def gpus(count: int) -> Request:
    return Request(uid=1001, account="vision", per_node=count // 2, nodes=2)


def test_a_large_job_without_a_reservation_is_refused_with_the_command_to_type(
    site: Reserving,
) -> None:
    site.show_reservations()
    assert site.submit(gpus(6)).accepted
    refused = site.submit(gpus(8), time_limit=36 * 60 + 5)
    assert not refused.accepted
    assert refused.messages == (
        "Refused by the reservation rule: jobs with 8 or more GPUs need a reservation, so that",
        "  they start at an agreed time.",
        "  GPUs without a reservation: limit 7, requested 8.",
        "  Request a reservation; after its approval, submit the job:",
        "    slurm-gpu reserve request --gpus 8 --nodes 2 --time 1-12:05:00 --account vision "
        "--partition gpu --why …",
        "  Questions: gpu-help",
    )
    assert site.log.read_text().splitlines()[-1].count("rules=reservation:reservation:enforce") == 1


def test_the_command_in_the_refusal_can_be_typed(site: Reserving) -> None:
    site.show_reservations()
    line = site.submit(gpus(8), time_limit=60).messages[-2]
    words = shlex.split(line.removeprefix("    slurm-gpu reserve request"))
    asked = ask.make_context("request", words).params
    assert (asked["gpus"], asked["nodes"], asked["duration_s"]) == (8, 2, 3600)


@pytest.mark.parametrize(
    "changes",
    [{}, {"gpus": 16}, {"state": ReservationState.ACTIVE}, {"account": "Vision"}, {"gpu_type": "a100"}],
)
def test_a_job_with_an_approved_reservation_passes(site: Reserving, changes: dict[str, object]) -> None:
    site.show_reservations(replace(APPROVED_RESERVATION, **changes))  # type: ignore[arg-type]
    assert site.submit(gpus(8)).accepted


@pytest.mark.parametrize(
    "changes",
    [
        {"user": "mallory"},
        {"account": "nlp"},
        {"partition": "long"},
        {"state": ReservationState.REQUESTED},
        {"state": ReservationState.RELEASED},
    ],
)
def test_a_reservation_of_another_user_or_not_approved_does_not_count(
    site: Reserving, changes: dict[str, object]
) -> None:
    site.show_reservations(replace(APPROVED_RESERVATION, **changes))  # type: ignore[arg-type]
    assert not site.submit(gpus(8)).accepted


def test_the_refusal_names_a_reservation_that_is_too_small(site: Reserving) -> None:
    site.show_reservations(replace(APPROVED_RESERVATION, gpus=6), replace(APPROVED_RESERVATION, id=4, gpus=7))
    refused = site.submit(gpus(8))
    assert not refused.accepted
    assert refused.messages[3] == "  Your reservation sg_4 is for 7 GPUs, too few for this job."
    assert "Request a reservation; after its approval, submit the job:" in refused.messages[4]


def messages_for(site: Reserving, job: Request, **more: object) -> tuple[str, ...]:
    verdict = site.submit(job, **more)
    assert verdict.accepted
    return verdict.messages


@pytest.mark.parametrize("mode", ["observe", "advise", "enforce"])
def test_a_job_that_a_reservation_would_end_early_gets_a_message_with_options(
    site: Reserving, mode: str
) -> None:
    """The mode does not matter, because Slurm itself places the job in the reservation."""
    site.show_reservations(BEGUN, mode=mode)
    # Second 1,000,000 is 13:46:40 on 12 January 1970; half a minute has passed since then.
    assert messages_for(site, gpus(2), time_limit=120) == (
        "Slurm may run this job in your reservation sg_3, which ends 1970-01-12 15:17. The job",
        "  has a time limit of 02:00:00, so Slurm may end it when the reservation ends.",
        "  To finish in time: --time=01:29:00",
        "  To run elsewhere: --exclude=n[1-2]",
    )
    assert messages_for(site, gpus(2), time_limit=89) == ()


def test_the_options_in_the_message_can_be_typed(site: Reserving) -> None:
    site.show_reservations(replace(BEGUN, end_s=NOW_S + 3 * 86400))
    fits = next(line for line in messages_for(site, gpus(2), time_limit=5 * 1440) if "--time=" in line)
    days, _, rest = fits.rpartition("=")[2].partition("-")
    hours, minutes, _ = map(int, rest.split(":"))
    limit = int(days) * 1440 + hours * 60 + minutes
    assert messages_for(site, gpus(2), time_limit=limit) == ()
    assert messages_for(site, gpus(2), time_limit=limit + 3) != ()
    exclude = messages_for(site, gpus(2), time_limit=5 * 1440, exc_nodes="n7")[-1].rpartition("=")[2]
    assert exclude == "n7,n[1-2]"
    assert messages_for(site, gpus(2), time_limit=5 * 1440, exc_nodes=exclude) == ()


def test_jobs_without_gpus_or_without_a_time_limit_get_the_message_too(site: Reserving) -> None:
    site.show_reservations(BEGUN)
    no_gpus = Request(uid=1001, account="vision")
    assert messages_for(site, no_gpus, time_limit=0)[0].startswith(
        "Slurm may run this job in your reservation sg_3"
    )
    text = " ".join(" ".join(messages_for(site, no_gpus, time_limit=0)).split())
    assert "The job has no time limit, so Slurm may end it" in text
    assert "--time=01:29:00" in text
    site.show_reservations(replace(BEGUN, end_s=site.now_s + 31 + 100))
    assert "--time=" not in " ".join(messages_for(site, no_gpus, time_limit=5))  # no time limit would fit


@pytest.mark.parametrize(
    ("changes", "job"),
    [
        ({"start_s": NOW_S + 3600, "end_s": NOW_S + 7200}, {}),  # the job may end before it begins
        ({"state": ReservationState.REQUESTED}, {}),
        ({"user": "mallory"}, {}),
        ({"account": "nlp"}, {}),
        ({"partition": "long"}, {}),
        ({}, {"reservation": "maint"}),
        ({}, {"exc_nodes": "n[1-2]"}),  # the option that the message names
        ({}, {"exc_nodes": "n7,n[2,1]"}),
        ({}, {"req_nodes": "n3"}),
        ({}, {"req_nodes": "n[2-3]"}),
        ({}, {"begin_time": BEGUN.end_s}),
    ],
)
def test_a_job_that_cannot_run_in_the_reservation_gets_no_message(
    site: Reserving, changes: dict[str, object], job: dict[str, object]
) -> None:
    site.show_reservations(replace(BEGUN, **changes), required=None)  # type: ignore[arg-type]
    assert messages_for(site, gpus(2), time_limit=120, **job) == ()


@pytest.mark.parametrize(
    "job",
    [
        {"exc_nodes": "n1"},
        {"req_nodes": "n2"},
        {"exc_nodes": "n[1-"},  # Slurm itself refuses this list
        {"begin_time": NOW_S + 600},
        {"begin_time": 0},
        {"begin_time": NO_VAL},
    ],
)
def test_a_job_that_may_get_a_node_of_the_reservation_gets_the_message(
    site: Reserving, job: dict[str, object]
) -> None:
    site.show_reservations(BEGUN)
    assert "sg_3" in " ".join(messages_for(site, gpus(2), time_limit=120, **job))


HOSTS = st.lists(st.from_regex(r"[a-z]{1,3}[0-9]{0,3}(-ib)?", fullmatch=True), min_size=1, max_size=12)


@pytest.mark.parametrize("lua", ["5.1", "5.4"])
def test_node_lists_are_parsed_as_slurm_writes_them(lua: str) -> None:
    runtime = importlib.import_module(f"lupa.lua{lua.replace('.', '')}").LuaRuntime()
    hosts = runtime.execute((lua_directory() / "hosts.lua").read_text())

    def read(text: str) -> set[str] | None:
        found = hosts.set(text)
        return None if found is None else set(found)

    @given(HOSTS)
    def as_expand_does(names: list[str]) -> None:
        assert read(compress(names)) == set(names) == set(expand(compress(names)))

    as_expand_does()
    assert read("n[08-10],x") == {"n08", "n09", "n10", "x"}
    for text in (
        "n[1-",
        "n]",
        "r[1-2]n[1-3]",
        "n[1-99999999]",
        "n[a]",
        "n[1-9999],m[1-9999]",
        "[1-99999999999]",
    ):
        assert read(text) is None, text


def test_a_job_that_names_the_reservation_gets_the_message_too(site: Reserving) -> None:
    site.show_reservations(replace(BEGUN, account="nlp"))
    assert messages_for(site, gpus(2), time_limit=120, reservation="sg_3")[-1] == (
        "  To run elsewhere: --exclude=n[1-2], without --reservation"
    )


def test_the_message_names_the_reservation_that_ends_first(site: Reserving) -> None:
    site.show_reservations(BEGUN, replace(BEGUN, id=4, end_s=BEGUN.end_s - 600, nodes="n5"))
    assert "reservation sg_4," in messages_for(site, gpus(2), time_limit=120)[0]


def test_equal_jobs_get_the_message_once_they_no_longer_fit(site: Reserving) -> None:
    site.show_reservations(BEGUN)
    assert [messages_for(site, gpus(2), time_limit=80) for _ in range(3)] == [()] * 3
    site.now_s += 20 * 60
    site.show_reservations(BEGUN)
    assert messages_for(site, gpus(2), time_limit=80) != ()


def test_an_older_snapshot_without_times_gives_no_message(site: Reserving) -> None:
    site.show_reservations(BEGUN)
    text = site.snapshot.read_text()
    site.snapshot.write_text(re.sub(r"(reserved \S+ \S+ \S+ \d+) [^\n]+", r"\1", text))
    assert messages_for(site, gpus(8), time_limit=120) == ()


def test_explain_considers_the_reservation_rule(site: Reserving, tmp_path: Path) -> None:
    site.show_reservations(APPROVED_RESERVATION)
    text = site.bundle
    script = PolicyScript(text, now=lambda: site.now_s, considers=True)

    def considered(job: Request) -> list[Considered]:
        found = script.submit(description(job), PARTITIONS).considered
        return [one for one in found if one.rule == "reservation"]

    label = "GPUs without a reservation"
    assert considered(gpus(8)) == [Considered("reservation", "enforce", label, None, "7", "8", True)]
    assert not considered(replace(gpus(8), account="nlp"))[0].fits
    assert considered(Request(uid=1001, account="vision")) == []


def test_a_job_that_names_a_reservation_passes(site: Reserving) -> None:
    site.show_reservations()
    assert site.submit(gpus(8), reservation="maint").accepted
    assert not site.submit(gpus(8), reservation="").accepted


def test_removing_a_large_job_from_its_reservation_requires_another(
    site: Reserving,
) -> None:
    site.show_reservations()
    job = record(7, gpus(8))
    nothing = dict.fromkeys(description(gpus(8)))

    def update(**changes: str) -> bool:
        return site.script.modify({**nothing, **changes}, job, PARTITIONS, 1001).accepted

    assert update(name="x")
    assert not update(reservation="")
    assert update(reservation="sg_4")
    site.show_reservations(APPROVED_RESERVATION)
    assert update(reservation="")


def test_a_reservation_counts_from_the_next_snapshot_on_also_for_equal_jobs(site: Reserving) -> None:
    for rows, accepted in (((APPROVED_RESERVATION,), True), ((), False), ((APPROVED_RESERVATION,), True)):
        site.show_reservations(*rows)
        assert [site.submit(gpus(8)).accepted for _ in range(3)] == [accepted] * 3


def test_mode_observe_only_logs_the_rule_and_mode_advise_only_warns(site: Reserving) -> None:
    site.show_reservations(mode="advise")
    verdict = site.submit(gpus(8))
    assert verdict.accepted
    assert verdict.messages[0].startswith("Violates the reservation rule: jobs with 8 or more GPUs")
    assert "  Warning only; the job was accepted." in verdict.messages
    site.show_reservations(mode="observe")
    assert site.submit(gpus(8)).messages == ()
    assert "rules=reservation:reservation:observe" in site.log.read_text().splitlines()[-1]


def test_without_reservations_in_a_fresh_snapshot_every_job_passes(site: Reserving) -> None:
    site.show_reservations()
    assert not site.submit(gpus(8)).accepted
    site.now_s += 31
    assert site.submit(gpus(8)).accepted  # the snapshot is too old
    site.show(two_zones())
    assert site.submit(gpus(8)).accepted  # the snapshot has no reservations
    site.show_reservations(APPROVED_RESERVATION, required=None)
    assert site.submit(replace(gpus(8), account="nlp")).accepted  # no job needs a reservation


def test_a_job_in_a_reservation_gets_no_zone(site: Reserving) -> None:
    site.show_reservations(required=None)
    assert site.submit(gpus(8)).desc["features"] == "[zone2|zone1]"
    site.show_reservations(APPROVED_RESERVATION, required=None)
    assert "features" not in site.submit(gpus(8)).desc
    assert site.logged == "enforce:-:reservation"
    assert site.submit(replace(gpus(8), account="nlp")).desc["features"] == "[zone2|zone1]"
