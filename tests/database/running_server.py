"""The real server in a thread of the tests, over real sockets and with real MUNGE credentials."""

import asyncio
import contextlib
import gzip
import http.client
import ipaddress
import json
import os
import pwd
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select

from slurm_gpu import munge
from slurm_gpu.config.site import Operators, Reservations, SiteConfig
from slurm_gpu.config.value_types import Address
from slurm_gpu.database.accounting.importer import Importer, store_changed_runs
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.app import make_app
from slurm_gpu.database.http.rate_limits import WAIT_S, CallerBounds
from slurm_gpu.database.http.server import make_server
from slurm_gpu.database.ingest.body_budget import BodyBudget, BoundedBodies
from slurm_gpu.database.ingest.heartbeat import Answering
from slurm_gpu.database.ingest.ingest_server import IngestServer
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.posts import Posts
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.quota_board import QuotaBoard
from slurm_gpu.database.live.verdict_board import VerdictBoard
from slurm_gpu.database.services import Services
from slurm_gpu.database.settings import PerUser
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import metadata
from slurm_gpu.http.identity import Authenticator
from slurm_gpu.http.server import HttpServer
from slurm_gpu.http.sockets import listen_unix
from slurm_gpu.http.web_reader import WebReader
from slurm_gpu.slurm.submission import UserAssociations
from tests.database.samples import CLUSTER, FakeClock, MemorySlurm, node, record, row

NOBODY = 65534
OPERATOR = 1  # This user exists in Debian and RHEL.
ROOT = os.getuid() == 0
# The clock of these tests, which does not advance by itself.
UNBOUNDED = PerUser(requests=1000, rows_per_s=10**9)
WEB = 2
"""A user that exists in Debian and RHEL, in the role of slurm-gpuweb's user."""
WEB_HOST = "127.0.0.7"
"""Another host on which slurm-gpuweb may run."""
# A user whose accounts cannot be queried, because slurmdbd is unreachable.
UNRESOLVED = 3
# The accounts of some users; other users have all accounts.
PLACES = {
    pwd.getpwuid(NOBODY).pw_name: UserAssociations(accounts=frozenset({"vision"})),
    pwd.getpwuid(UNRESOLVED).pw_name: UserAssociations(from_slurmdbd=False),
}


@dataclass
class Running:
    """A server in a thread of this process."""

    database: Database
    config: SiteConfig
    munge_socket: str
    clock: FakeClock
    slurm: MemorySlurm
    verdicts: VerdictBoard
    bodies: BodyBudget
    services: Services
    posts: Posts
    http_server: HttpServer

    @property
    def port(self) -> int:
        return Address("127.0.0.1", int(self.config.database.rpartition(":")[2])).port

    def contents(self) -> dict[str, int]:
        with self.database.reading() as connection:
            return {
                table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in metadata.sorted_tables
            }

    def http(self, **given: Any) -> httpx.Client:
        return httpx.Client(base_url=self.config.database, trust_env=False, **given)

    def raw(
        self, method: str, target: str, body: bytes | Iterator[bytes], headers: dict[str, str]
    ) -> tuple[int, Any]:
        """Send one request unchanged; return the status and the decoded answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text.startswith(b"{") else text
        finally:
            connection.close()

    def asked_by(self, uid: int, method: str, target: str, body: bytes = b"") -> tuple[int, Any]:
        """Send a request signed by another user; return the status and the answer."""
        return self.raw(method, target, body, self.signed_by(uid, method, target, body))

    def signed_by(self, uid: int, method: str, target: str, body: bytes = b"") -> dict[str, str]:
        """Return the headers of a request signed by another user."""
        with acting_as(uid):
            return self.signed(method, target, body)

    def signed(self, method: str, target: str, body: bytes = b"", **more: str) -> dict[str, str]:
        digest = munge.request_digest(method, target, body)
        return {"Authorization": f"MUNGE {munge.encode(digest, self.munge_socket)}", **more}

    def post(self, body: bytes) -> tuple[int, Any]:
        """Post a shipment as root; return the status and the answer."""
        headers = self.signed("POST", "/v1/node", body, **{"Content-Encoding": "gzip"})
        return self.raw("POST", "/v1/node", body, headers)


@contextlib.contextmanager
def running_server(
    data: Path,
    path: Path,
    munge_socket: str,
    per_user: PerUser = UNBOUNDED,
    places_of: Callable[[str], UserAssociations] = lambda user: PLACES.get(user, UserAssociations()),
    wait_s: float = WAIT_S,
) -> Iterator[Running]:
    """A server with one run of alice, and the node `here` at 127.0.0.1."""
    database = Database(f"sqlite:///{data / 'x.db'}")
    database.upgrade()
    clock = FakeClock()
    slurm = MemorySlurm()
    slurm.node_list.append(node(9, name="here", address="127.0.0.1"))
    view = SlurmView(slurm, clock)
    memory = LiveState.fresh(clock)
    # The tests run as root, who ships, or as another user in the role of SlurmUser.
    services = Services(
        cluster=CLUSTER,
        database=database,
        authenticator=Authenticator(
            Operators(users=(pwd.getpwuid(OPERATOR).pw_name,)),
            os.getuid,
            clock,
            munge_socket,
            web=WebReader(pwd.getpwuid(WEB).pw_name, (ipaddress.ip_network(WEB_HOST),)),
        ),
        importing=Importer(database, view, clock, CLUSTER, 60.0),
        view=view,
        memory=memory,
        quotas=QuotaBoard(clock),
        clock=clock,
        bounds=CallerBounds(per_user, clock, wait_s),
        reservations=Reservations(),
        places_of=places_of,
    )
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = listen_unix(path)
    posts = Posts(services.authenticator, Intake(database, view, CLUSTER, clock, memory), clock)
    bodies = BodyBudget(clock)
    answering = Answering(BoundedBodies(make_app(services, posts), bodies), clock)
    ingest_server = IngestServer(posts.take, answering.records, bodies)
    uvicorn = make_server(answering, ingest_server, services.stopping.set)
    thread = threading.Thread(target=lambda: asyncio.run(uvicorn.serve([tcp, unix])))
    thread.start()
    config = SiteConfig(
        cluster=CLUSTER,
        database=f"http://127.0.0.1:{tcp.getsockname()[1]}",
        database_socket=path,
        munge_socket=munge_socket,
    )
    database.write(lambda connection: store_changed_runs(connection, [run_row(row(name="secret"), {})]))
    yield Running(
        database, config, munge_socket, clock, slurm, services.verdicts, bodies, services, posts, uvicorn
    )
    uvicorn.should_exit = True
    thread.join()
    database.dispose()


def shipment(**given: Any) -> bytes:
    return gzip.compress(
        json.dumps(
            {"wire": 1, "node": "here", "boot_id": "b", "records": [record(node="here").to_wire()], **given}
        ).encode()
    )


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Connect with the effective IDs of another user, which the kernel reports to the peer."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
