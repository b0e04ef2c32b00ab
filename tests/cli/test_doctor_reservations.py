"""`slurm-gpu doctor` reports differences between the reservations of Slurm and of slurm-gpudbd."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_gpu.cli.doctor.checks.finding import DoctorContext
from slurm_gpu.cli.doctor.checks.slurm.reservations import reservations
from slurm_gpu.wire.answers.reservation import Reservation, ReservationState
from tests.cli.conftest import CommandLine
from tests.cli.test_reserve import APPROVED, REQUESTED, Commands, with_rows
from tests.slurm.recorded import NOW_S

OLD = replace(APPROVED, decided_s=NOW_S - 600)
OVER = replace(OLD, state=ReservationState.CANCELLED, ended_s=NOW_S - 600)
IN_SLURM = "ReservationName=sg_5 StartTime=1 EndTime=2 Nodes=n3 Users=bob Accounts=nlp Flags=MAGNETIC\n"


def _at(command: CommandLine) -> DoctorContext:
    return DoctorContext(command.site, has_unit=lambda _: True)


def findings(command: CommandLine, in_slurm: str, *rows: Reservation) -> list[tuple[str, str]]:
    commands = Commands()
    commands.reservations, command.site.run = in_slurm, commands
    with_rows(command, *rows)
    return [(one.level.value, f"{one.message} → {one.remedy}") for one in reservations(_at(command))]


@pytest.fixture
def command(slurm_gpu: CommandLine) -> CommandLine:
    slurm_gpu.config.write_text("cluster: neuron\nplacement: {reservations: {}}\n")
    return slurm_gpu


@pytest.mark.parametrize(
    ("in_slurm", "rows", "level", "message"),
    [
        ("", (), "ok", "Slurm has every promised reservation: 0 reservations"),
        (IN_SLURM, (OLD, REQUESTED), "ok", "1 reservation; 1 request awaiting an operator's decision"),
        ("", (APPROVED,), "ok", "1 reservation"),  # approved just now
        ("", (OLD,), "fail", "but Slurm does not have it → run systemctl start slurm-gpuctld"),
        (
            IN_SLURM.replace("n3", "n9"),
            (OLD,),
            "fail",
            "promised to bob on n3, but Slurm has another reservation of this name (bob on n9) → run",
        ),
        ("", (replace(OLD, error="Invalid user id"),), "warn", "sg_5 of bob: Invalid user id → run scontrol"),
        (
            IN_SLURM,
            (replace(OLD, error="slurm-gpuctld's clock is 99 s ahead of slurm-gpudbd's: …"),),
            "warn",
            "99 s ahead of slurm-gpudbd's: … → run chronyc tracking",
        ),
        (IN_SLURM, (OVER,), "warn", "sg_5 is cancelled, but still in Slurm"),
        (IN_SLURM, (replace(OVER, ended_s=NOW_S - 5),), "ok", "0 reservations"),
        (
            IN_SLURM,
            (),
            "warn",
            "is not one of them; slurm-gpu does not change it → if it is not needed, run scontrol",
        ),
        (
            IN_SLURM.replace("bob", "root"),
            (OVER,),
            "warn",
            "is not one of them; slurm-gpu does not change it",
        ),
        (IN_SLURM.replace("sg_5", "maint"), (), "ok", "0 reservations"),
    ],
)
def test_differences_are_named_with_a_remedy(
    command: CommandLine, in_slurm: str, rows: tuple[Reservation, ...], level: str, message: str
) -> None:
    ((found, message),) = findings(command, in_slurm, *rows)
    assert found == level
    assert message in message


def test_reserved_nodes_that_are_out_of_service_are_named(command: CommandLine) -> None:
    client = command.site.slurm
    nodes = [replace(node, state="idle+drain") if node.name == "n3" else node for node in client.nodes()]
    at = DoctorContext(command.site)
    at.__dict__["nodes"] = nodes
    commands = Commands()
    commands.reservations, command.site.run = IN_SLURM, commands
    with_rows(command, OLD)
    (found,) = reservations(at)
    assert found.message == "sg_5 is promised to bob, but n3 is out of service"
    assert "after ten minutes out of service" in (found.remedy or "")


def test_a_site_without_reservations_is_skipped(slurm_gpu: CommandLine) -> None:
    ((level, message),) = findings(slurm_gpu, IN_SLURM)
    assert level == "skipped"
    assert "reservations are not enabled" in message
