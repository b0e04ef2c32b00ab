"""`slurm-gpu doctor` waits for a hanging daemon only once, and for all of them within one time limit."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.cli.doctor import time_bound
from slurm_gpu.cli.doctor.time_bound import TimeBound, bounded
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import DatabaseError, MungedUnavailableError, SlurmError


class Hanging:
    """Simulate Slurm's commands, munged and slurm-gpudbd, which all hang, and the elapsed time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[tuple[str, float]] = []

    def monotonic(self) -> float:
        return self.now_s

    def _wait(self, what: str, timeout_s: float) -> None:
        self.asked.append((what, timeout_s))
        self.now_s += timeout_s

    def run(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        self._wait(argv[0], timeout_s)
        raise SlurmError(f"`{argv[0]}` gave no answer within {timeout_s:g} s")

    def encode(self, payload: bytes, socket: str | None) -> str:
        self._wait("munged", 10.0)
        raise MungedUnavailableError("MUNGE: Timed-out; is munged running?")

    def response(self, method: str, path: str, timeout: float, **request: Any) -> Any:
        self._wait(path, timeout)
        raise DatabaseError("slurm-gpudbd did not answer in time")


@pytest.fixture
def hanging() -> Hanging:
    return Hanging()


@pytest.fixture
def site(hanging: Hanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandSite:
    monkeypatch.setattr(time_bound, "TimeBound", lambda: TimeBound(hanging.monotonic))
    monkeypatch.setattr(DatabaseClient, "_response", lambda _, *args, **more: hanging.response(*args, **more))
    config = tmp_path / "slurm-gpu.yaml"
    config.write_text(f"cluster: neuron\ndatabase_socket: {tmp_path}/none\n")
    return bounded(CommandSite(config, run=hanging.run, encode=hanging.encode))


def test_a_hanging_daemon_is_awaited_once(site: CommandSite, hanging: Hanging):
    for command in ("sacctmgr", "sacct", "sacctmgr"):
        with pytest.raises(SlurmError, match="`sacctmgr` gave no answer within 10 s"):
            site.run([command], {}, 60.0)
    assert hanging.asked == [("sacctmgr", 10.0)]


def test_several_daemons_share_one_time_limit(site: CommandSite, hanging: Hanging):
    for command in ("squeue", "sacctmgr"):
        with pytest.raises(SlurmError):
            site.run([command], {}, 60.0)
    with site.database() as database:
        for _ in range(2):
            with pytest.raises(DatabaseError, match="did not answer in time"):
                database.health()
    assert hanging.asked == [("squeue", 10.0), ("sacctmgr", 4.0), ("/v1/health", 4.0)]


def test_a_hanging_munged_is_not_awaited_again_for_signed_requests(site: CommandSite, hanging: Hanging):
    for _ in range(2):
        with pytest.raises(MungedUnavailableError):
            site.encode(b"", None)
    with pytest.raises(MungedUnavailableError):
        site.database()
    with pytest.raises(MungedUnavailableError):  # a slow ping is first attributed to munged
        _ = site.slurm
    assert hanging.asked == [("munged", 10.0), ("scontrol", 4.0)]


def test_slurmdbd_is_awaited_within_the_time_limit(site: CommandSite, hanging: Hanging):
    with pytest.raises(SlurmError):
        site.limits.tracked_tres()
    assert hanging.asked == [("sacctmgr", 10.0)]


def test_a_daemon_that_refuses_immediately_is_asked_again(hanging: Hanging):
    asked = []

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        asked.append(timeout_s)
        raise SlurmError("`sacctmgr` failed (1): Connection refused")

    bound = TimeBound(hanging.monotonic)
    for _ in range(2):
        with pytest.raises(SlurmError):
            bound.run(run)(["sacctmgr"], {}, 60.0)
    assert asked == [10.0, 10.0]


def test_a_command_without_a_daemon_has_its_own_time_limit(hanging: Hanging):
    bound = TimeBound(hanging.monotonic)
    with pytest.raises(SlurmError, match="within 30 s"):
        bound.run(hanging.run)(["systemctl"], {}, 30.0)


def test_a_replaced_database_connection_is_kept(site: CommandSite):
    def connect(_: SiteConfig) -> DatabaseClient:
        raise DatabaseError("mine")

    with pytest.raises(DatabaseError, match="mine"):
        bounded(dataclasses.replace(site, connect_database=connect)).database()
