"""`slurm-gpu reserve` requests, approves and shows reservations, with the recorded Slurm."""

from __future__ import annotations

import csv
import json
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from slurm_gpu.errors import UsageError
from slurm_gpu.wire.answers.reservation import Reservation, ReservationState
from tests.cli.conftest import CommandLine, Database
from tests.slurm.recorded import NOW_S, RecordedSlurm

ME = pwd.getpwuid(os.getuid()).pw_name
DAY_S = 86400
SPARE_S = 1800
REQUESTED = Reservation(
    id=7,
    cluster="neuron",
    user="alice",
    account="vision",
    partition="gpu",
    gpus=8,
    n_nodes=2,
    duration_s=3 * DAY_S,
    earliest_s=NOW_S,
    why="the model of the paper",
    state=ReservationState.REQUESTED,
    requested_s=NOW_S,
)
APPROVED = replace(
    REQUESTED,
    id=5,
    user="bob",
    account="nlp",
    state=ReservationState.APPROVED,
    start_s=NOW_S + DAY_S,
    nodes="n3",
    gpus=4,
    end_s=NOW_S + 2 * DAY_S + SPARE_S,
    n_nodes=1,
    duration_s=DAY_S,
    gpu_type="v100",
    decided_by="carol",
    decided_s=NOW_S,
)
ENDED = replace(
    APPROVED,
    id=2,
    state=ReservationState.ENDED,
    start_s=NOW_S - 5 * DAY_S,
    end_s=NOW_S - 4 * DAY_S,
    first_job_id=99,
    first_eligible_s=NOW_S - 6 * DAY_S,
    first_start_s=NOW_S - 5 * DAY_S + 90,
    ended_s=NOW_S - 4 * DAY_S,
    ended_why="its window is over",
)
UNUSED = replace(
    ENDED,
    id=3,
    state=ReservationState.RELEASED,
    first_job_id=None,
    first_eligible_s=None,
    first_start_s=None,
    ended_s=NOW_S - 3 * DAY_S,
    ended_why="unused for 30m",
)
MAINTENANCE = (
    f"ReservationName=maint StartTime={NOW_S + 2 * DAY_S} EndTime={NOW_S + 2 * DAY_S + 7200} Nodes=n[1-3] "
    "Flags=MAINT Users=root Accounts=(null)\n"
)


# The reservation APPROVED as slurm-gpuctld created it in Slurm.
IN_SLURM = (
    f"ReservationName=sg_5 StartTime={NOW_S + DAY_S} EndTime={NOW_S + 2 * DAY_S} Nodes=n3 "
    "Flags=SPEC_NODES,MAGNETIC Users=bob Accounts=nlp\n"
)


class Table(Database):
    """A Database with reservations."""

    def __init__(self, *rows: Reservation) -> None:
        super().__init__()
        self.rows = {row.id: row for row in rows}
        self.request: dict[str, Any] = {}

    def reservations(self, past: int = 0, ids: Sequence[int] = ()) -> Sequence[Reservation]:
        return [row for row in self.rows.values() if not row.state.is_over or row.id in ids or past]

    def request_reservation(self, **asked: Any) -> Reservation:
        self.request = asked
        known = {name: value for name, value in asked.items() if value is not None}
        return replace(REQUESTED, user=ME, **known)

    def decide_reservation(self, number: int, act: str, **more: Any) -> Reservation:
        self.request = {"act": act, **more}
        if number not in self.rows:
            raise UsageError(f"there is no reservation {number}")
        row = self.rows[number]
        if act == "approve":
            return replace(row, state=ReservationState.APPROVED, **more)
        return replace(row, state=ReservationState.CANCELLED if act == "cancel" else ReservationState.DENIED)


class Commands(RecordedSlurm):
    """Simulate Slurm's commands, including those for reservations and accounts."""

    def __init__(self) -> None:
        super().__init__()
        self.reservations = ""

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        if "reservation" in argv:
            return self.reservations or "No reservations in the system\n"
        if argv[0] == "sacctmgr":
            return "vision|vision|normal\n"
        if "partition" in argv:
            return "PartitionName=gpu Default=YES\nPartitionName=cpu Default=NO\n"
        return super().__call__(argv, environ, timeout_s)


@pytest.fixture
def command(slurm_gpu: CommandLine) -> CommandLine:
    slurm_gpu.config.write_text(
        "cluster: neuron\ntimezone: Asia/Seoul\nplacement: {reservations: {}}\n"
        "zones: {zone1: {nodes: 'n[1-2]'}, zone2: {nodes: n3}}\n"
    )
    with_rows(slurm_gpu, REQUESTED, APPROVED)
    slurm_gpu.site.run = Commands()
    return slurm_gpu


def with_rows(command: CommandLine, *rows: Reservation) -> Table:
    table = Table(*rows)
    command.database = table
    command.site.connect_database = lambda _: table  # type: ignore[assignment,return-value]
    return table


def table_of(command: CommandLine) -> Table:
    assert isinstance(command.database, Table)
    return command.database


def test_a_request_prints_its_earliest_start(command: CommandLine) -> None:
    assert command("reserve", "request", "--gpus=8", "--gpu-type=a100", "--time=3d", "--why=paper") == 0
    request = table_of(command).request
    assert (request["account"], request["partition"], request["n_nodes"], request["duration_s"]) == (
        "vision",
        "gpu",
        2,
        3 * DAY_S,
    )
    assert command.out == (
        "Request 7: 8 a100 GPUs on 2 whole nodes for 3d, account vision. An operator decides.\n"
        # Jobs on n1 and n2 may run for a week; the start allows for the epilog and is rounded up to a minute.
        "If approved now, the reservation begins Sat 2026-11-28 21:16 on n[1-2].\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--gpus=8", "--gpu-type=h100"),
            "partition gpu has no node in service with h100 GPUs; Slurm has ",
        ),
        (
            ("--gpus=8", "--partition=cpu"),
            "partition cpu has no node in service with GPUs; Slurm has a100",
        ),
        (
            ("--gpus=16",),
            "the reservation needs 4 nodes with 4 GPUs each, but partition gpu has only 3 in service",
        ),
        (
            ("--gpus=8", "--nodes=1"),
            "the reservation needs 1 node with 8 GPUs each, but partition gpu has only 0",
        ),
        (("--gpus=8", "--latest=2d"), "2 nodes cannot be reserved together for 3d by Mon 2026-11-23"),
        (("--gpus=8", "--earliest=soon"), "--earliest soon: use a date (2026-12-01), a time"),
        (
            ("--gpus=8", "--earliest=2d", "--latest=1d"),
            "--latest 1d (Sun 2026-11-22 21:15) must not be before the earliest start, Mon 2026-11-23 21:15",
        ),
        (("--gpus=8", "--time=30s"), "'30s' is less than a minute; use a duration such as 36h or 3d"),
        (("--gpus=8", "--why= "), "the reason must not be empty"),
    ],
)
def test_an_impossible_request_is_refused(
    command: CommandLine, options: tuple[str, ...], message: str
) -> None:
    assert command("reserve", "request", "--time=3d", "--why=paper", *options) == 2
    assert message in command.err
    assert table_of(command).request == {}


def test_approve_uses_the_first_window_and_prints_the_command_to_type(command: CommandLine) -> None:
    assert command("reserve", "approve", "7") == 0
    request = table_of(command).request
    assert request["end_s"] - request["start_s"] == 3 * DAY_S + SPARE_S
    assert command.out == (
        "Reservation 7 begins Sat 2026-11-28 21:16 on n[1-2], for 3d; its name in Slurm is sg_7.\n"
        "alice's jobs enter it without further options:\n"
        "  sbatch --account=vision --partition=gpu --nodes=2 --gpus-per-node=4 --time=3-00:00:00 …\n"
    )


def test_the_printed_command_requests_no_more_gpus_than_approved(command: CommandLine) -> None:
    """job_submit.lua would refuse a job with more GPUs than its reservation."""
    with_rows(command, replace(REQUESTED, gpus=9, n_nodes=3), replace(REQUESTED, id=8, gpus=7))
    assert command("reserve", "approve", "8") == 0
    assert "--nodes=2 --gpus=7 --time=" in command.out
    assert command("reserve", "approve", "7") == 0
    assert "--nodes=3 --gpus-per-node=3 --time=" in command.out


def test_other_reservations_are_avoided(command: CommandLine) -> None:
    rows = [REQUESTED, replace(APPROVED, start_s=NOW_S + 8 * DAY_S, end_s=NOW_S + 9 * DAY_S, nodes="n[1-2]")]
    with_rows(command, *rows)
    command("reserve", "approve", "7")
    assert table_of(command).request["start_s"] == NOW_S + 9 * DAY_S
    commands = Commands()
    daily = f"ReservationName=nightly StartTime={NOW_S} EndTime={NOW_S + 3600} Nodes=n[1-3] Flags=DAILY\n"
    commands.reservations, command.site.run = daily, commands
    assert command("reserve", "approve", "7") == 2  # three days never fit between two nights
    assert "2 nodes cannot be reserved together for 3d by Wed 2027-01-20" in command.err  # the horizon ends


def test_an_operator_chooses_nodes_and_the_earliest_start(command: CommandLine) -> None:
    assert command("reserve", "approve", "7", "--start=2026-12-24T09:00", "--nodes=n[2-3]") == 0
    assert "begins Thu 2026-12-24 09:00 on n[2-3]" in command.out
    assert command("reserve", "approve", "7", "--nodes=n2") == 2
    assert "the reservation needs 2 nodes with 4 GPUs each, but the named nodes include only 1" in command.err
    assert command("reserve", "approve", "7", "--nodes=n[") == 2
    assert command.err.startswith("slurm-gpu: --nodes: ")
    assert command("reserve", "approve", "5") == 2
    assert "reservation 5 is approved: only requests" in command.err
    assert command("reserve", "approve", "99") == 2
    assert "reservation 99 does not exist" in command.err


def test_deny_and_cancel_print_their_effect(command: CommandLine) -> None:
    assert command("reserve", "deny", "7", "--why=no room") == 0
    assert (table_of(command).request, command.out) == (
        {"act": "deny", "why": "no room"},
        "Request 7 is denied.\n",
    )
    commands = Commands()
    commands.reservations, command.site.run = IN_SLURM, commands
    assert command("reserve", "cancel", "5") == 0
    assert command.out == (
        "Reservation 5 is cancelled; its nodes become free for other users within a minute after its last "
        "job ends.\n"
    )


@pytest.mark.parametrize(
    ("in_slurm", "message"),
    [
        ("", "Reservation 5 is cancelled; Slurm has no such reservation.\n"),
        (
            "Nodes=n2",
            "Reservation 5 is cancelled; sg_5 in Slurm is on n2 for bob, which was not approved, so "
            "slurm-gpu does "
            "not delete it: run `scontrol delete ReservationName=sg_5` if it is not needed.\n",
        ),
    ],
)
def test_cancel_reports_a_reservation_that_remains_in_slurm(
    command: CommandLine, in_slurm: str, message: str
) -> None:
    commands = Commands()
    commands.reservations = IN_SLURM.replace("Nodes=n3", in_slurm) if in_slurm else MAINTENANCE
    command.site.run = commands
    assert command("reserve", "cancel", "5") == 0
    assert command.out == message


def test_the_calendar_shows_reservations_requests_and_those_of_the_site(command: CommandLine) -> None:
    commands = Commands()
    commands.reservations, command.site.run = MAINTENANCE, commands
    assert command("reserve", "list") == 0
    lines = command.out.splitlines()
    assert lines[0].split() == ["ID", "state", "user", "account", "GPUs", "nodes", "begins", "for", "note"]
    assert lines[1].split()[:8] == ["5", "approved", "bob", "nlp", "4", "v100", "n3", "Sun"]
    assert lines[2].split()[:7] == ["7", "requested", "alice", "vision", "8", "2", "nodes"]
    # Today is Saturday, 21:15 in Seoul; each character is an hour.
    assert lines[4].split() == ["Sat", "21", "Sun", "22", "Mon", "23"]
    bars = {line.split()[0]: line.split()[-1] for line in lines[5:7]}
    assert bars["5"] == "·" * (24 + 21) + "█" * 25 + "··"
    assert bars["maint"] == "·" * (48 + 21) + "▒" * 3
    assert all(len(line) <= 100 for line in lines[4:])


def test_json_has_every_key_and_a_summary_of_the_past(command: CommandLine) -> None:
    with_rows(command, REQUESTED, ENDED, UNUSED)
    assert command("reserve", "list", "--past", "--json") == 0
    found = json.loads(command.out)
    assert [(row["id"], row["late_s"]) for row in found["reservations"]] == [(2, 90), (3, None)]
    assert found["promises"] == {
        "n": 1,
        "unused": 1,
        "median_late_s": 90,
        "worst_late_s": 90,
        "not_made": 0,
    }
    command("reserve", "list", "--json")
    found = json.loads(command.out)
    assert ([row["id"] for row in found["reservations"]], found["others"], found["promises"]) == (
        [7],
        [],
        None,
    )


def test_csv_has_a_row_for_each_reservation_and_empty_gaps(command: CommandLine) -> None:
    with_rows(command, REQUESTED, ENDED, UNUSED)
    assert command("reserve", "list", "--past", "--csv") == 0
    head, *rows = list(csv.DictReader(command.out.splitlines()))
    assert (head["id"], head["state"], head["late_s"], head["first_job_id"]) == ("2", "ended", "90", "99")
    assert [(row["id"], row["late_s"], row["first_start_s"]) for row in rows] == [("3", "", "")]
    assert command("reserve", "list", "--json", "--csv") == 2


def test_limit_requires_past(command: CommandLine) -> None:
    assert command("reserve", "list", "--limit=3") == 2
    assert command.err == "slurm-gpu: --limit applies only to past reservations: add --past\n"


def test_past_shows_whether_reservations_began_in_time(command: CommandLine) -> None:
    with_rows(command, REQUESTED, ENDED, UNUSED)
    assert command("reserve", "list", "--past") == 0
    lines = command.out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["3", "released", "bob"], ["2", "ended", "bob"]]
    assert "1m30s" in lines[2]
    assert "unused for 30m" in lines[1]
    assert lines[3:] == [
        "Promised and used: 1; the first job began 1m30s late (median), and at most 1m30s late",
        "Promised and not used: 1",
    ]


def test_a_reservation_that_slurm_never_had_does_not_count_as_unused(command: CommandLine) -> None:
    never = replace(UNUSED, state=ReservationState.ENDED, error="Invalid account or account/partition")
    with_rows(command, ENDED, never)
    assert command("reserve", "list", "--past") == 0
    assert command.out.splitlines()[-1] == "Promised but never in Slurm: 1"
    assert "not used" not in command.out


def test_an_empty_list_prints_a_remark(command: CommandLine) -> None:
    with_rows(command)
    command("reserve", "list")
    assert command.out == "There are no reservations and no requests\n"
    command("reserve", "list", "--past")
    assert command.out == "No reservation has ended yet\n"


def test_a_site_without_reservations_gets_the_setting_to_add(slurm_gpu: CommandLine) -> None:
    assert slurm_gpu("reserve", "request", "--gpus=8", "--time=3d", "--why=paper") == 2
    assert "To enable them, an admin adds `placement: {reservations: {}}` to slurm-gpu.yaml" in slurm_gpu.err
    with_rows(slurm_gpu)
    slurm_gpu.site.run = Commands()
    assert slurm_gpu("reserve", "list") == 0
    assert slurm_gpu.out.startswith(
        "Nothing is reserved: reservations are not enabled. To enable them, an admin adds"
    )
