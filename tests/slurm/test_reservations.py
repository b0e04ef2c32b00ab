"""Test reservations as printed by Slurm 22.05, and the commands that change them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.reservations import NodesBusyError, ReservationClient, SlurmReservation

UTC = ZoneInfo("UTC")
SHOWN = (
    "ReservationName=sg_3 StartTime=1795438109 EndTime=1795438709 Duration=00:10:00 Nodes=n[1-2] NodeCnt=2 "
    "CoreCnt=64 Features=(null) PartitionName=gpu Flags=SPEC_NODES,MAGNETIC TRES=cpu=64 Users=alice "
    "Groups=(null) Accounts=vision Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a "
    "MaxStartDelay=(null)\n"
    "ReservationName=maint StartTime=1795438000 EndTime=1795441600 Duration=01:00:00 Nodes=(null) NodeCnt=0 "
    "CoreCnt=0 Features=(null) PartitionName=(null) Flags=MAINT,WEEKLY,ANY_NODES TRES=cpu=0 Users=root,carol "
    "Groups=(null) Accounts=(null) Licenses=matlab:2 State=ACTIVE BurstBuffer=(null) Watts=n/a\n"
)


class Commands:
    """A runner that returns prepared answers and records the commands."""

    def __init__(self, *answers: str | SlurmError) -> None:
        self.answers, self.asked = list(answers), list[Sequence[str]]()

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        assert environ["SLURM_TIME_FORMAT"] == "%s"
        self.asked.append([*argv])
        answer = self.answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return answer


def test_all_are_read_those_of_the_site_too() -> None:
    ours, sites = ReservationClient(Commands(SHOWN), {}).all()
    assert ours == SlurmReservation(
        "sg_3",
        1795438109,
        1795438709,
        "n[1-2]",
        frozenset({"alice"}),
        frozenset({"vision"}),
        frozenset({"SPEC_NODES", "MAGNETIC"}),
        "gpu",
    )
    assert (sites.nodes, sites.users) == ("", {"root", "carol"})
    assert list(ours.spans(ours.start_s + 1, UTC)) == [(ours.start_s, ours.end_s)]
    week_s = 7 * 86400
    assert [start_s for start_s, _ in sites.spans(sites.start_s + 2 * week_s, UTC)] == [
        sites.start_s,
        sites.start_s + week_s,
    ]
    assert ReservationClient(Commands("No reservations in the system\n"), {}).all() == []


@pytest.mark.parametrize(
    ("flag", "starts"),
    [
        ("DAILY", ("2026-10-24T02:00+02:00", "2026-10-25T02:00+02:00", "2026-10-26T02:00+01:00")),
        ("WEEKLY", ("2026-10-24T02:00+02:00", "2026-10-31T02:00+01:00")),
        ("HOURLY", ("2026-10-24T02:00+02:00", "2026-10-24T03:00+02:00")),
    ],
)
def test_reservations_are_repeated_in_local_time(flag: str, starts: Sequence[str]) -> None:
    """Test the night to 25 October 2026, when daylight saving time ended in Berlin."""
    first, *_, last = (int(dt.datetime.fromisoformat(at).timestamp()) for at in starts)
    nightly = SlurmReservation("nightly", first, first + 1800, "n1", flags=frozenset({flag}))
    found = list(nightly.spans(last + 1, ZoneInfo("Europe/Berlin")))
    assert [dt.datetime.fromtimestamp(at_s, dt.UTC) for at_s, _ in found] == [
        dt.datetime.fromisoformat(at) for at in starts
    ]
    assert {end_s - start_s for start_s, end_s in found} == {1800}


def test_reservations_with_any_name_and_comment_are_read() -> None:
    """Output of Slurm 22.05 for reservations with such names; later versions have comments."""
    rest = "Duration=01:00:00 Nodes=n4 Flags=SPEC_NODES Users=bob Groups=(null) Accounts=(null)"
    names = ("a b", "x=y", "q'\"u", "nl\nEndTime=5", "sg_99", "StartTime=x")
    text = "".join(f"ReservationName={name} StartTime=7 EndTime=9 {rest}\n" for name in names)
    text += (
        f"ReservationName=last StartTime=7 EndTime=9 {rest} Comment=StartTime=1 Users=eve Nodes=\nn[1-4]\n"
    )
    found = ReservationClient(Commands(text), {}).all()
    assert [one.name for one in found] == [*names, "last"]
    assert {(one.start_s, one.end_s, one.nodes, *one.users) for one in found} == {(7, 9, "n4", "bob")}


def test_unreadable_output_is_an_error() -> None:
    with pytest.raises(SlurmError, match="scontrol printed a reservation that cannot be read"):
        ReservationClient(Commands("ReservationName=x StartTime=2026-11-23T11:00:00\n"), {}).all()


def test_busy_nodes_are_an_error_of_their_own() -> None:
    busy = SlurmError("`scontrol …` failed (1): Error creating the reservation: Requested nodes are busy")
    other = SlurmError("`scontrol …` failed (1): Error creating the reservation: Invalid user id")
    commands = Commands(busy, other, "Reservation created: sg_3\n", "", "")
    client = ReservationClient(commands, {})

    def create(*, ignores_jobs: bool = False) -> None:
        client.create(
            "sg_3",
            start_s=5,
            end_s=9,
            nodes="n[1-2]",
            user="alice",
            account="vision",
            partition="gpu",
            ignores_jobs=ignores_jobs,
        )

    with pytest.raises(NodesBusyError):
        create()
    with pytest.raises(SlurmError, match="Invalid user id"):
        create()
    create(ignores_jobs=True)
    client.delete("sg_3")
    assert commands.asked[-2] == [
        "scontrol",
        "create",
        "reservation",
        "ReservationName=sg_3",
        "StartTime=uts5",
        "EndTime=uts9",
        "Nodes=n[1-2]",
        "PartitionName=gpu",
        "Users=alice",
        "Accounts=vision",
        "Flags=MAGNETIC,IGNORE_JOBS",
    ]
    assert commands.asked[-1] == ["scontrol", "delete", "ReservationName=sg_3"]
    client.unset_magnetic("sg_3")
    assert commands.asked[-1] == ["scontrol", "update", "ReservationName=sg_3", "Flags-=MAGNETIC"]


def test_jobs_of_its_users_have_their_reservation() -> None:
    client = ReservationClient(_Squeue(), {})
    running, waiting = client.jobs_of({"bob", "alice"})
    assert (running.job_id, running.reservation, running.start_s, running.time_limit_s) == (
        7,
        "sg_3",
        50,
        300,
    )
    assert (waiting.reservation, waiting.eligible_s, waiting.start_s) == ("", None, None)
    assert (waiting.partitions, waiting.time_limit_s) == ({"gpu", "long"}, None)
    assert (running.nodes, waiting.nodes) == ("n[1-2]", "")
    assert client.jobs_of(()) == []


class _Squeue(Commands):
    """A squeue that prints two rows with the requested delimiter."""

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        assert "--user=alice,bob" in argv
        mark = argv[-1].rpartition(":0")[2]
        rows = (
            ("7", "RUNNING", "alice", "vision", "gpu", "sg_3", "10", "50", "5:00", "None", "n[1-2]"),
            (
                "8",
                "PENDING",
                "bob",
                "nlp",
                "gpu,long",
                "(null)",
                "N/A",
                "N/A",
                "UNLIMITED",
                "Dependency",
                "",
            ),
        )
        return "\n".join("".join(f"{word}{mark}" for word in row) for row in rows) + "\n"
