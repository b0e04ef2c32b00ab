"""slurm-gpudbd with workers: what they store, what is shown of it, and what their death costs."""

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.site import Placement, Reservations, load_config
from slurm_gpu.database.ingest.shipment import ShipmentError
from slurm_gpu.database.ingest.worker_protocol import (
    Answered,
    Beginning,
    Heard,
    Splitter,
    decode_order,
    decode_word,
    error_of,
    failure,
    packed,
)
from slurm_gpu.errors import DatabaseError, SlurmError
from tests.database.samples import record, segment
from tests.database.test_daemon import Daemon, UnixConnection, sequence_numbers, shipping, wait_for

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="only root may ship without a Slurm to name SlurmUser"
)


@contextmanager
def running(root: Path, url: str, n_workers: int) -> Iterator[Daemon]:
    daemon = Daemon(root, url)
    daemon.settings.write_text(f"url: {url}\nlisten: 127.0.0.1:0\nworkers: {n_workers}\n")
    try:
        daemon.start()
        yield daemon
    finally:
        if daemon.process is not None and daemon.process.is_alive():
            daemon.stop(signal.SIGKILL)


def workers_of(daemon: Daemon | int, named: bytes = b"slurm_gpu.database.ingest.worker") -> list[int]:
    """The process ids of a daemon's, or of a process's, in whose command line that stands."""
    if isinstance(daemon, Daemon):
        assert daemon.process is not None
        parent = daemon.process.pid
    else:
        parent = daemon
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for children in tasks for pid in children.read_text().split()]
    return [pid for pid in pids if named in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_alive(pid: int) -> bool:
    """Also if nobody has waited for it."""
    return Path(f"/proc/{pid}").exists()


def got(daemon: Daemon, path: str) -> Any:
    connection = UnixConnection(daemon.socket)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def shipped(daemon: Daemon, **items: Any) -> dict[str, Any]:
    connection = UnixConnection(daemon.socket)
    try:
        connection.request("POST", "/v1/node", json.dumps({"wire": 1, "node": "n1", **items}))
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


LIVE = {"at_s": 1.8e9, "devices": {"GPU-1": {"util_pct": 50.0, "jobs": [7]}}}


def test_what_a_worker_took_in_is_shown_as_if_there_were_none(tmp_path: Path) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 1) as daemon:
        (worker,) = workers_of(daemon)
        records = [record(segment=segment(n)).to_wire() for n in range(40)]  # more than is read at the door
        bad = {**records[0], "seq": -1}
        answer = shipped(daemon, records=[*records, bad], live=LIVE)
        assert (answer["stored"], [item["index"] for item in answer["rejected"]]) == (40, [40])
        assert list(got(daemon, "/v1/live")["nodes"]) == ["n1"]
        assert got(daemon, "/v1/health")["rejected"] == {"records": 1}
        # The worker imports, and finds no Slurm.
        wait_for(lambda: got(daemon, "/v1/health")["import_error"] is not None, daemon.log)
        assert shipped(daemon, live=LIVE)["stored"] == 0
        assert worker in workers_of(daemon)


def test_kill_9_of_workers_loses_nothing_acknowledged(tmp_path: Path, url: str) -> None:
    moments = random.Random(5)
    acknowledged: dict[str, int] = {}
    with running(tmp_path, url, 2) as daemon:
        kill_at = moments.randint(7, 20)
        for n in range(60):
            name, seq = segment(n % 7), n
            if n == kill_at:
                for pid in workers_of(daemon):
                    os.kill(pid, signal.SIGKILL)
            if daemon.ship(record(segment=name, seq=seq)) == 200:
                acknowledged[name] = seq
        wait_for(lambda: daemon.ship(record(segment=segment(99))) == 200, daemon.log)
        assert daemon.stop(signal.SIGTERM) == 0
    stored = sequence_numbers(url)
    assert len(acknowledged) == 7
    assert all(stored[name] >= seq for name, seq in acknowledged.items())
    assert "is restarted in 1 s" in daemon.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_never_outlive_slurm_gpudbd(tmp_path: Path, number: int) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 2) as daemon:
        pids = workers_of(daemon)
        assert len(pids) == 2
        daemon.stop(number)
        wait_for(lambda: not any(map(is_alive, pids)), daemon.log)


def test_slurm_gpudbd_ends_though_a_worker_stands_still_with_what_was_shipped(tmp_path: Path) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 2) as daemon:
        pids = workers_of(daemon)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with shipping(daemon):
            assert daemon.stop(signal.SIGTERM) == 0
        assert "is given up" not in daemon.log()
        wait_for(lambda: not any(map(is_alive, pids)), daemon.log)


def test_without_the_setting_there_is_no_other_process(tmp_path: Path) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 0) as daemon:
        assert workers_of(daemon) == []


def test_a_worker_is_told_the_whole_configuration(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "etc" / "slurm-gpu.yaml"
    config = replace(
        load_config(shipped), munge_socket="/run/m", placement=Placement(reservations=Reservations())
    )
    beginning = Beginning(config, "sqlite:////x.db", for_people=True, imports=True)
    assert decode_order(packed(beginning)[4:]) == beginning


@given(st.lists(st.binary(max_size=300)), st.data())
def test_words_come_whole_however_they_are_cut(bodies: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(packed(Answered(n, body)) for n, body in enumerate(bodies))
    splitter, came = Splitter(), []
    while sent:
        n = data.draw(st.integers(1, len(sent)))
        came += map(decode_word, splitter.feed(sent[:n]))
        sent = sent[n:]
    assert came == [Answered(n, body) for n, body in enumerate(bodies)]


@pytest.mark.parametrize(
    "error", [ShipmentError(429, "too much", 7), DatabaseError("away"), SlurmError("slurmctld is away")]
)
def test_an_error_of_a_worker_is_the_same_to_who_asked(error: Exception) -> None:
    told = decode_word(packed(failure(3, error))[4:])
    assert not isinstance(told, Heard)
    same = error_of(told)  # type: ignore[arg-type]
    assert (type(same), str(same)) == (type(error), str(error))
    assert getattr(same, "retry_after_s", None) == getattr(error, "retry_after_s", None)
    assert getattr(same, "status", None) == getattr(error, "status", None)
