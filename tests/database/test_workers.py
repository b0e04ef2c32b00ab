"""Test slurm-gpudbd with workers: ingest, answers, and the effects of a worker's death."""

import http.client
import json
import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu import munge
from slurm_gpu.config.site import Placement, Reservations, load_config
from slurm_gpu.database.ingest.worker_protocol import WorkerSetup, decode_order, encode
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S, LIVE_INTERVAL_S
from tests.database.samples import record, segment
from tests.database.test_daemon import Daemon, sequence_numbers, wait_for

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="only root may ship without a Slurm to name SlurmUser"
)


@dataclass
class TcpDaemon:
    """A client of a daemon with workers; like nodes, it uses TCP and MUNGE credentials."""

    daemon: Daemon
    port: int
    munge_socket: str

    def request(self, method: str, path: str, body: bytes = b"", within_s: float = 20) -> tuple[int, Any]:
        """Return the status, 0 if the connection is closed or times out, and the answer."""
        digest = munge.request_digest(method, path, body)
        headers = {"Authorization": f"MUNGE {munge.encode(digest, self.munge_socket)}"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=within_s)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return 0, None
        finally:
            connection.close()

    def ship(self, within_s: float = 20, **items: Any) -> tuple[int, Any]:
        body = json.dumps({"wire": 1, "node": "n1", **items}).encode()
        return self.request("POST", "/v1/node", body, within_s)

    def a_worker_answers(self) -> bool:
        with self.workers_alone():
            return self.request("POST", "/v1/node", b"{}", within_s=1)[0] == 400

    def got(self, path: str) -> Any:
        status, answer = self.request("GET", path)
        assert status == 200, answer
        return answer

    @contextmanager
    def workers_alone(self) -> Iterator[None]:
        """Stop slurm-gpudbd itself; only its workers answer meanwhile."""
        assert self.daemon.process is not None
        assert self.daemon.process.pid is not None
        os.kill(self.daemon.process.pid, signal.SIGSTOP)
        states = Path(f"/proc/{self.daemon.process.pid}/task")
        wait_for(
            lambda: {stat.read_text().rpartition(")")[2][1] for stat in states.glob("*/stat")} == {"T"},
            self.daemon.log,
        )
        try:
            yield
        finally:
            os.kill(self.daemon.process.pid, signal.SIGCONT)


@contextmanager
def running(root: Path, url: str, n_workers: int, munge_socket: str) -> Iterator[TcpDaemon]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon = Daemon(root, url)
    daemon.settings.write_text(f"url: {url}\nlisten: 127.0.0.1:{port}\nworkers: {n_workers}\n")
    with (root / "slurm-gpu.yaml").open("a") as site:
        site.write(f"munge_socket: {munge_socket}\n")
    try:
        daemon.start()
        tcp = TcpDaemon(daemon, port, munge_socket)
        if n_workers:
            wait_for(tcp.a_worker_answers, daemon.log)
        yield tcp
    finally:
        if daemon.process is not None and daemon.process.is_alive():
            daemon.stop(signal.SIGKILL)


def workers_of(daemon: Daemon | int, named: bytes = b"slurm_gpu.database.ingest.worker") -> list[int]:
    """Return the ids of processes of a daemon whose command line contains a text."""
    if isinstance(daemon, Daemon):
        assert daemon.process is not None
        parent = daemon.process.pid
    else:
        parent = daemon
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for children in tasks for pid in children.read_text().split()]
    return [pid for pid in pids if named in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_alive(pid: int) -> bool:
    """Return whether a process exists, even as a zombie."""
    return Path(f"/proc/{pid}").exists()


LIVE = {"at_s": 1.8e9, "devices": {"GPU-1": {"util_pct": 50.0, "jobs": [7]}}}


def test_shipments_of_a_worker_are_shown_by_slurm_gpudbd(tmp_path: Path, munge_socket: str) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 1, munge_socket) as tcp:
        records = [record(segment=segment(n)).to_wire() for n in range(40)]  # too large for one read
        bad = {**records[0], "seq": -1}
        answers: list[Any] = []

        def ships() -> bool:
            # The stopped daemon may hold SQLite's lock.
            with tcp.workers_alone():
                status, answer = tcp.ship(within_s=2, records=[*records, bad], live=LIVE)
            answers.append(answer)
            return status == 200

        wait_for(ships, tcp.daemon.log)
        answer = answers[-1]
        assert answer["stored"] + answer["stale"] == 40
        assert [item["index"] for item in answer["rejected"]] == [40]
        wait_for(lambda: list(tcp.got("/v1/live")["nodes"]) == ["n1"], tcp.daemon.log)
        assert tcp.got("/v1/health")["rejected"]["records"] >= 1


def test_workers_return_the_required_live_interval(tmp_path: Path, munge_socket: str) -> None:
    def interval_s() -> float:
        with tcp.workers_alone():
            answer: dict[str, Any] = tcp.ship(live=LIVE)[1]
        return float(answer["live_interval_s"])

    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 1, munge_socket) as tcp:
        assert interval_s() == IDLE_LIVE_INTERVAL_S
        tcp.got("/v1/live")
        wait_for(lambda: interval_s() == LIVE_INTERVAL_S, tcp.daemon.log)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_worker_passes_on_what_is_no_shipment(tmp_path: Path, munge_socket: str, version: str) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 1, munge_socket) as tcp:
        request = f"GET /v1/health HTTP/{version}\r\nHost: dbhost\r\nConnection: close\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", tcp.port), timeout=20) as connection:
            with tcp.workers_alone():
                connection.sendall(request)
                tcp.ship(live=LIVE)  # by then the worker has read the other request, too
            assert b" 401 " in connection.recv(100)[:20]


def test_kill_9_of_workers_loses_nothing_acknowledged(tmp_path: Path, url: str, munge_socket: str) -> None:
    moments = random.Random(5)
    acknowledged: dict[str, int] = {}
    with running(tmp_path, url, 2, munge_socket) as tcp:
        kill_at = moments.randint(7, 20)
        for n in range(60):
            name, seq = segment(n % 7), n
            if n == kill_at:
                for pid in workers_of(tcp.daemon):
                    os.kill(pid, signal.SIGKILL)
            if tcp.ship(records=[record(segment=name, seq=seq).to_wire()])[0] == 200:
                acknowledged[name] = seq
        wait_for(lambda: "has ended; it is restarted in 1 s" in tcp.daemon.log(), tcp.daemon.log)
        wait_for(lambda: len(workers_of(tcp.daemon)) == 2, tcp.daemon.log)
        assert tcp.daemon.stop(signal.SIGTERM) == 0
    stored = sequence_numbers(url)
    assert len(acknowledged) == 7
    assert all(stored[name] >= seq for name, seq in acknowledged.items())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_never_outlive_slurm_gpudbd(tmp_path: Path, number: int, munge_socket: str) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 2, munge_socket) as tcp:
        pids = workers_of(tcp.daemon)
        assert len(pids) == 2
        tcp.daemon.stop(number)
        wait_for(lambda: not any(map(is_alive, pids)), tcp.daemon.log)


def test_a_terminal_interrupts_slurm_gpudbd_alone(tmp_path: Path, munge_socket: str) -> None:
    """Workers answer the requests that they have read, and their exit is not a failure."""
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 1, munge_socket) as tcp:
        (worker,) = workers_of(tcp.daemon)
        assert tcp.daemon.process is not None
        assert tcp.daemon.process.pid is not None
        assert os.getpgid(worker) != os.getpgid(tcp.daemon.process.pid)
        assert tcp.daemon.stop(signal.SIGINT) == 0
        assert "restarted" not in tcp.daemon.log()


def test_slurm_gpudbd_ends_though_a_worker_is_stopped(tmp_path: Path, munge_socket: str) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 2, munge_socket) as tcp:
        pids = workers_of(tcp.daemon)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        assert tcp.daemon.stop(signal.SIGTERM) == 0
        assert "is dropped" not in tcp.daemon.log()
        wait_for(lambda: not any(map(is_alive, pids)), tcp.daemon.log)


def test_without_the_setting_there_is_no_other_process(tmp_path: Path, munge_socket: str) -> None:
    with running(tmp_path, f"sqlite:///{tmp_path / 'x.db'}", 0, munge_socket) as tcp:
        assert workers_of(tcp.daemon) == []
        assert tcp.ship(live=LIVE)[0] == 200


def test_a_worker_receives_the_whole_configuration(tmp_path: Path) -> None:
    path = tmp_path / "slurm-gpu.yaml"
    shipped = Path(__file__).parents[2] / "etc" / "slurm-gpu.yaml"
    path.write_text(shipped.read_text().replace("CHANGE-ME", "neuron"))
    config = replace(
        load_config(path), munge_socket="/run/m", placement=Placement(reservations=Reservations())
    )
    beginning = WorkerSetup(config, "sqlite:////x.db", for_people=True, listener=5, share=0.5)
    assert decode_order(encode(beginning)) == beginning
