"""Test the content of timelines, windows, live values, hosts and events, and access to them."""

import pwd
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import store_events
from slurm_gpu.database.api import reads
from slurm_gpu.database.live.live_needs import NEEDED_FOR_S
from slurm_gpu.database.queries import run_detail as detail
from slurm_gpu.database.queries import run_queries as queries
from slurm_gpu.database.queries.run_queries import FRESH_S, find_windows
from slurm_gpu.database.storage.schema import metadata
from slurm_gpu.errors import DatabaseError
from slurm_gpu.http.identity import Caller
from slurm_gpu.wire import Event, HostRun, Mean
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S, LIVE_INTERVAL_S
from slurm_gpu.wire.window import pack
from tests.database.running_server import NOBODY, OPERATOR, ROOT, Running, acting_as, running_server
from tests.database.samples import (
    CLUSTER,
    T0,
    gpu,
    host,
    node,
    queued,
    record,
    requeued,
    row,
    segment,
    timeline,
)
from tests.database.test_node_shipment import window

needs_root = pytest.mark.skipif(not ROOT, reason="becoming another user needs root")


@pytest.fixture
def site(server: Running) -> Iterator[Running]:
    """Return a server with an empty database whose node `here` may ship anything."""
    with server.database.engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(delete(table))
    server.clock.now += 1000  # live values and requests of the previous test expire
    yield server
    server.slurm.queue.clear()


def ship(site: Running, **lists: Any) -> dict[str, Any]:
    def wire(item: Any) -> Any:
        return item.to_wire() if hasattr(item, "to_wire") else item

    items = {name: [wire(i) for i in some] if type(some) is list else some for name, some in lists.items()}
    with DatabaseClient(site.config) as client:
        answer = client._http.post("/v1/node", json={"wire": 1, "node": "here", "boot_id": "b", **items})
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    rejected = {name: some for name, some in value.items() if name.startswith("rejected") and some}
    assert rejected == {}
    return value


def account(site: Running, *given: Any) -> None:
    rows = [run_row(item, {}) for item in given or (row(nodes="here"),)]
    site.database.write(lambda connection: store_changed_runs(connection, rows))
    reconcile(site.database)


def ask(site: Running, uid: int, target: str) -> tuple[int, Any]:
    with acting_as(uid):
        headers = site.signed("GET", target)
    return site.raw("GET", target, b"", headers)


def here(**given: Any) -> Any:
    return record(node="here", **given)


def event(n: int, **given: Any) -> Event:
    return Event(**{"node": "here", "boot_id": "b", "n": n, "at_s": T0 + 5, "kind": "xid", **given})


def test_a_job_comes_with_its_hosts_events_and_devices(site: Running) -> None:
    events = [
        event(1, device="GPU-1", data={"code": 79}),
        event(2, job_id=1, kind="job_mismatch", at_s=T0 + 9),
        event(3, device="GPU-1", at_s=T0 + 50),
        event(4, device="GPU-9"),
        event(5, device="GPU-1", job_id=7),
        event(6, device="GPU-1", job_id=7, kind="intruder", at_s=T0 + 10),
        event(7, device="GPU-1", job_id=1, kind="intruder", at_s=T0 + 10),
        event(8, job_id=1, kind="epilog_missing", node="n2"),
    ]
    ship(site, records=[here(timeline=timeline(1, 2))], hosts=[host(node="here")], events=events)
    ship(site, devices=[gpu(node="here"), gpu(node="here", uuid="GPU-2")])
    account(site)
    with DatabaseClient(site.config) as client:
        (run,) = client.run("1")
        assert (run.app, run.app_field) == ("GROMACS", "molecular dynamics")
        assert run.devices == [here()], "the timeline has its own request"
        assert run.hosts == [host(node="here")]
        assert run.events == [events[0], events[1], events[5], events[6]]
        assert run.device_facts == {"GPU-1": gpu(node="here")}
        (listed,) = client.runs().runs
        assert (listed.app, listed.hosts, listed.device_facts) == ("GROMACS", None, None)


def test_events_go_to_the_run_that_they_happened_in(site: Running) -> None:
    first, second = requeued()
    first = first._replace(nodes="here", end_s=T0 + 1000, elapsed_s=1000)
    second = second._replace(start_s=T0 + 5000, end_s=T0 + 6000, nodes="here")
    ship(site, events=[event(1, job_id=1), event(2, job_id=1, at_s=T0 + 5500), event(3, job_id=1, at_s=5)])
    account(site, first, second)
    with DatabaseClient(site.config) as client:
        assert [[item.n for item in run.events or ()] for run in client.run("1")] == [[2], [1]]


def test_events_of_other_nodes_do_not_displace_those_of_the_jobs_own(
    site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detail, "MAX_EVENTS", 3)
    site.slurm.node_list.append(node(8, name="there", address="127.0.0.1"))
    site.clock.now += 100  # the window is requested again
    foreign = [event(n, node="there", job_id=1, at_s=T0 + 1) for n in range(1, 5)]
    foreign += [event(n, node="there", device="GPU-1", at_s=T0 + 1) for n in range(11, 15)]
    own = [event(1, job_id=1, at_s=T0 + 2), event(2, device="GPU-1", at_s=T0 + 3)]
    ship(site, events=[*foreign, *own], records=[here()])
    account(site)
    with DatabaseClient(site.config) as client:
        (run,) = client.run("1")
    assert [(item.node, item.n) for item in run.events or ()] == [("here", 1), ("here", 2)]
    site.slurm.node_list.pop()


def test_the_first_and_last_events_of_each_kind_are_kept_over_the_limit(
    site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that many events of one kind hide neither other kinds nor the last event."""
    monkeypatch.setattr(detail, "MAX_EVENTS", 8)
    many = [event(n, job_id=1, at_s=T0 + n, kind="throttle_begin") for n in range(1, 31)]
    ship(site, events=[*many, event(40, job_id=1, at_s=T0 + 40, kind="gpu_lost")], records=[here()])
    account(site)
    with DatabaseClient(site.config) as client:
        page = client.run_page("1")
    (run,) = page.runs
    assert [item.n for item in run.events or ()] == [1, 2, 3, 4, 28, 29, 30, 40]
    assert page.events_left_out == 23


@needs_root
def test_an_answer_has_the_number_of_omitted_runs(site: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_LIMIT", 3)
    account(site, *(row(job_id=100 + task, array_job_id=100, array_task=task) for task in range(5)))
    with DatabaseClient(site.config) as client:
        page = client.run_page("100")
        assert ([run.id for run in page.runs], page.left_out) == (["100_4", "100_3", "100_2"], 2)
        assert client.run_page("100_0").left_out == 0
    status, answer = site.raw(
        "GET", "/v1/runs/100/timeline", b"", site.signed("GET", "/v1/runs/100/timeline")
    )
    assert (status, len(answer["runs"]), answer["left_out"]) == (200, 3, 2)


def test_windows_of_many_runs_are_requested_in_batches(
    site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_MAX_ASKED", 2)
    tasks = range(5)
    account(
        site,
        *(
            row(
                job_id=100 + task,
                array_job_id=100,
                array_task=task,
                nodes="here",
                end_s=None,
                state="RUNNING",
            )
            for task in tasks
        ),
    )
    asked, root = set[int](), Caller(0, "root", sees_all=True, writes=True)
    for _ in range(3):
        with site.database.reading() as connection:
            found = find_windows(connection, CLUSTER, "100", root, site.clock.wall())
        asked |= {job_id for _, job_id in found.missing}
        ship(
            site,
            windows=[window(job_id=job_id, segment=segment(job_id)) for _, job_id in found.missing],
        )
    assert asked == {100 + task for task in tasks}


def test_an_event_that_an_older_version_took_keeps_no_job_from_being_shown(site: Running) -> None:
    spoilt = Event(**{**_values(event(1, job_id=1)), "data": {"text": "\ud800"}})
    site.database.write(lambda connection: store_events(connection, [spoilt]))
    ship(site, events=[event(2, job_id=1)])
    account(site)
    with DatabaseClient(site.config) as client:
        (run,) = client.run("1")
    assert [(item.n, item.data) for item in run.events or ()] == [(1, {}), (2, event(2).data)]


def _values(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def test_a_timeline_is_one_for_each_device_of_a_run(site: Running) -> None:
    later = here(segment=segment(2), first_s=T0 + 11, last_s=T0 + 20, timeline=timeline(100, start_s=T0 + 12))
    other = here(segment=segment(3), device="GPU-2")
    ship(site, records=[here(timeline=timeline(0, 50, None)), later, other])
    account(site)
    with DatabaseClient(site.config) as client:
        (course,) = client.timelines("1")
        assert client.timelines("99") == ()
    assert (course.id, course.submit_s) == ("1", T0 - 60)
    assert course.devices is not None
    first, second = course.devices
    assert (first.node, first.device, second.device) == ("here", "GPU-1", "GPU-2")
    assert second.timeline is None
    assert first.timeline is not None
    gap = [None] * 9
    assert first.timeline.fractions("util") == [0.0, 0.5, None, *gap, 1.0]


def test_one_timeline_of_a_double_watch_counts(site: Running) -> None:
    less = here(segment=segment(2), sampled_s=5.0, util_hist_ms={}, timeline=timeline(100))
    ship(site, records=[here(timeline=timeline(0)), less])
    account(site)
    with DatabaseClient(site.config) as client:
        ((device,),) = (course.devices or () for course in client.timelines("1"))
    assert device.timeline == timeline(0)


def test_a_window_is_requested_and_received(site: Running) -> None:
    account(site, row(nodes="here,n2", end_s=None, state="RUNNING"))
    with DatabaseClient(site.config) as client:
        assert client.windows("1") == ()
        answer = client._http.get("/v1/runs/1/window")
        assert (answer.status_code, answer.headers["Retry-After"]) == (202, "10")
        assert answer.json() == {"windows": [], "requested": ["here", "n2"]}
        assert ship(site)["want"] == [1]
        assert ship(site, windows=[window()])["want"] == [], "its record need not be there yet"
        (found,) = client.windows("1")
        assert (found.node, found.segment, found.series) == ("here", window().segment, window().series)
        site.clock.now += FRESH_S
        assert client.windows("1") == (), "what a running job did then is not what it does now"
        assert ship(site)["want"] == [1]
        grown = window(series={"util_pct": pack([0.0, None, 50.0, 60.0])})
        ship(site, windows=[grown])
        assert [item.series for item in client.windows("1")] == [grown.series]


def test_a_machine_without_slurm_has_jobs_of_the_same_number(site: Running) -> None:
    """Test two running jobs with the same ID: each node is asked only for the window of its own job."""
    account(site, row(nodes="n2", end_s=None, state="RUNNING"))
    reported = HostRun(
        cluster="host:ws1", job_id=1, node="ws1", seq=1, uid=1, user="alice", start_s=T0, devices=["GPU-0"]
    )

    def send(node: str, **lists: Any) -> Any:
        with DatabaseClient(site.config) as client:
            body = {"wire": 1, "node": node, "boot_id": "b", **lists}
            return client._http.post("/v1/node", json=body).json()["want"]

    assert send("ws1", runs=[reported.to_wire()]) == []
    with DatabaseClient(site.config) as client:
        assert client.windows("1") == ()
        assert (send("n2"), send("ws1")) == ([1], [1])
        assert send("ws1", windows=[window(segment=segment(7)).to_wire()]) == []
        assert send("n2") == [1], "it is still waited for"
        assert [item.node for item in client.windows("1")] == ["ws1"]


def test_the_window_of_a_job_that_ended_is_there_as_long_as_it_is_kept(site: Running) -> None:
    ship(site, records=[here()], windows=[window()])
    account(site)
    site.clock.now += 3600
    with DatabaseClient(site.config) as client:
        assert [item.series for item in client.windows("1")] == [window().series]
        account(site, row(job_id=2))
        with pytest.raises(DatabaseError, match="no window of job 2 is stored, and the job is not running"):
            client.windows("2")
        with pytest.raises(DatabaseError, match="no run of job 99"):
            client.windows("99")


def test_live_values_come_with_a_tag_that_changes_with_them(site: Running) -> None:
    live = {"at_s": T0, "devices": {"GPU-1": {"util_pct": 50.0, "jobs": [1]}}, "host": {"cpu_pct": 7.0}}
    ship(site, live=live)
    with DatabaseClient(site.config) as client:
        (values,) = client.live().values()
        assert values.to_wire() == {**live, "devices": {"GPU-1": {"util_pct": 50.0, "jobs": [1]}}}
        tag = client._http.get("/v1/live").headers["ETag"]
        same = client._http.get("/v1/live", headers={"If-None-Match": f'"other", {tag}'})
        assert (same.status_code, same.content) == (304, b"")
        ship(site, live={**live, "at_s": T0 + 10})
        assert client._http.get("/v1/live", headers={"If-None-Match": tag}).status_code == 200
        site.clock.now += 60
        assert client.live() == {}


def test_a_reader_of_live_values_makes_nodes_post_every_ten_seconds(site: Running) -> None:
    def interval_s() -> float:
        answer: float = ship(site, open=[1])["live_interval_s"]
        return answer

    site.slurm.queue.append(queued(nodes=("here",), gpu_index={"here": {"gpu": [0]}}, uid=NOBODY))
    with DatabaseClient(site.config) as client:
        client.live("none")
        assert interval_s() == IDLE_LIVE_INTERVAL_S
        for refresh in ("jobs", "all"):
            client.live(refresh)
            assert interval_s() == LIVE_INTERVAL_S
            site.clock.now += NEEDED_FOR_S
            assert interval_s() == IDLE_LIVE_INTERVAL_S
        assert client._http.get("/v1/live?refresh=some").status_code == 400


@needs_root
def test_a_user_has_only_the_nodes_of_own_jobs_post_each_ten_seconds(site: Running) -> None:
    site.slurm.queue.append(queued(nodes=("here",), gpu_index={"here": {"gpu": [0]}}, uid=NOBODY))
    assert ask(site, NOBODY + 1, "/v1/live")[0] == 200
    assert ship(site, open=[1])["live_interval_s"] == IDLE_LIVE_INTERVAL_S
    assert ask(site, NOBODY, "/v1/live")[0] == 200
    assert ship(site, open=[1])["live_interval_s"] == LIVE_INTERVAL_S


def test_a_requested_window_makes_its_node_post_every_ten_seconds(site: Running) -> None:
    site.slurm.queue.append(queued(nodes=("here",), gpu_index={"here": {"gpu": [0]}}))
    ship(site, open=[1], records=[here()])
    account(site, row(state="RUNNING", end_s=None, nodes="here"))
    assert ship(site, open=[1])["live_interval_s"] == IDLE_LIVE_INTERVAL_S
    with DatabaseClient(site.config) as client:
        assert client.windows("1") == ()
    assert ship(site, open=[1])["live_interval_s"] == LIVE_INTERVAL_S


def _event_stream(path: Path) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(10)
    stream.connect(str(path))
    stream.sendall(b"GET /v1/live HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
    return stream


def _read_until(stream: socket.socket, wanted: bytes) -> bytes:
    read = b""
    while wanted not in read:
        piece = stream.recv(65536)
        assert piece, f"ended before {wanted!r}: {read!r}"
        read += piece
    return read


def test_live_values_also_come_by_themselves(site: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LIVE_EVERY_S", 0.01)
    with _event_stream(site.config.database_socket) as stream:
        head = _read_until(stream, b'data: {"nodes":{}}\n\n')
        assert b"content-type: text/event-stream" in head.lower()
        ship(site, live={"at_s": T0, "devices": {"GPU-1": {"util_pct": 50}}})
        _read_until(stream, b'"util_pct":50.0')
        quiet = _read_until(stream, b":\n\n")
        assert b"data:" not in quiet.partition(b":\n\n")[2], "unchanged content is not repeated"


def test_an_open_stream_does_not_keep_the_server_from_stopping(
    short_path: Path, tmp_path: Path, munge_socket: str
) -> None:
    with running_server(tmp_path, short_path / "stop.sock", munge_socket) as running:
        stream = _event_stream(running.config.database_socket)
        _read_until(stream, b"data: ")
    with stream:
        assert b"".join(iter(lambda: stream.recv(65536), b"")).endswith(b"0\r\n\r\n")


def test_no_user_can_take_all_streams(site: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LIVE_STREAMS_OF_A_USER", 2)
    monkeypatch.setattr(reads, "LIVE_EVERY_S", 0.01)
    with _event_stream(site.config.database_socket) as one, _event_stream(site.config.database_socket) as two:
        for stream in (one, two):
            _read_until(stream, b"data: ")
        with _event_stream(site.config.database_socket) as three:
            assert _read_until(three, b"\r\n").startswith(b"HTTP/1.1 429 ")
    until = time.monotonic() + 10
    while True:
        with _event_stream(site.config.database_socket) as again:
            if _read_until(again, b"\r\n").startswith(b"HTTP/1.1 200 "):
                break
        assert time.monotonic() < until, "what was closed still counts"


@needs_root
def test_live_values_of_others_devices_are_only_their_occupancy(site: Running) -> None:
    mine, theirs = {"util_pct": 50.0, "jobs": [1]}, {"util_pct": 60.0, "jobs": [2]}
    shared = {"util_pct": 70.0, "jobs": [1, 2]}
    site.slurm.queue += [queued(job_id=n, uid=uid, nodes=("here",)) for n, uid in ((1, NOBODY), (2, 1001))]
    site.slurm.queue.append(queued(job_id=3, uid=NOBODY, nodes=("n1",)))
    site.clock.now += 10
    # slurmctld is queried again
    site.raw("GET", "/v1/live", b"", site.signed("GET", "/v1/live"))
    not_slurms = {"util_pct": 80.0, "jobs": [3]}  # the same ID, assigned by a machine without Slurm
    devices = {"A": mine, "B": theirs, "C": shared, "D": not_slurms}
    ship(site, live={"at_s": T0, "devices": devices, "host": {"cpu_pct": 7.0}})
    assert ask(site, NOBODY, "/v1/live")[1]["nodes"]["here"] == {
        "at_s": T0,
        "devices": {"A": mine, "B": {"jobs": [2]}, "C": {"jobs": [1, 2]}, "D": {"jobs": [3]}},
        "host": {},
    }
    assert ask(site, OPERATOR, "/v1/live")[1]["nodes"]["here"]["devices"]["C"] == shared


@needs_root
def test_host_metrics_are_shown_for_a_running_job_alone_on_its_nodes(site: Running) -> None:
    site.slurm.queue.append(queued(job_id=1, uid=NOBODY, nodes=("here",), start_s=T0 - 60))
    site.clock.now += 10
    site.raw("GET", "/v1/live", b"", site.signed("GET", "/v1/live"))  # slurmctld is queried again
    for n in range(3):
        ship(site, live={"at_s": T0 + 10 * n, "devices": {}, "host": {"cpu_pct": 10.0 * n}})
    reported = {"node": "here", "at_s": [T0, T0 + 10, T0 + 20], "series": {"cpu": [0.0, 0.1, 0.2]}}
    assert ask(site, NOBODY, "/v1/runs/1/hosts") == (200, {"hosts": [reported]})
    assert ask(site, OPERATOR, "/v1/runs/1/hosts") == (200, {"hosts": [reported]})
    assert ask(site, 1001, "/v1/runs/1/hosts") == (200, {"hosts": []}), "it is another user's"
    with DatabaseClient(site.config) as client:
        (found,) = client.hosts("1")
        assert (found.at_s, found.series) == ((T0, T0 + 10, T0 + 20), {"cpu": (0.0, 0.1, 0.2)})
        assert client.hosts("99") == ()
    site.slurm.queue.append(queued(job_id=2, uid=1001, nodes=("here",)))
    site.clock.now += 10
    site.raw("GET", "/v1/live", b"", site.signed("GET", "/v1/live"))
    assert ask(site, OPERATOR, "/v1/runs/1/hosts") == (200, {"hosts": []}), "of whom of the two is it?"


@needs_root
def test_other_users_see_no_timeline_window_or_host(site: Running) -> None:
    ship(site, records=[here(timeline=timeline(1))], hosts=[host(node="here")], windows=[window()])
    account(site)
    (run,) = ask(site, NOBODY, "/v1/runs/1")[1]["runs"]
    assert (run["full"], run["app"], run["app_field"]) == (False, None, None)
    assert not {"devices", "hosts", "events", "device_facts"} & set(run)
    assert ask(site, NOBODY, "/v1/runs/1/timeline")[1]["runs"][0]["devices"] is None
    status, answer = ask(site, NOBODY, "/v1/runs/1/window")
    assert (status, answer) == (
        403,
        {"error": "job 1 belongs to another user; only its owner and operators may see its window"},
    )
    assert ask(site, OPERATOR, "/v1/runs/1/window")[0] == 200
    account(site, row(job_id=2, user=pwd.getpwuid(NOBODY).pw_name, uid=NOBODY, nodes="here"))
    assert ask(site, NOBODY, "/v1/runs/2/timeline")[1]["runs"][0]["devices"] == []


def test_a_node_is_shown_with_the_devices_that_it_has_now(site: Running) -> None:
    old, kept = gpu(node="here"), gpu(node="here", uuid="GPU-2", index=1)
    ship(site, devices=[old, kept])
    instance = gpu(node="here", uuid="MIG-1", at_s=T0 + 60, parent="GPU-2", gpu_instance=1, index=1)
    now = gpu(node="here", uuid="GPU-2", at_s=T0 + 60, index=1)
    ship(site, devices=[now, instance], version="9.9")
    with DatabaseClient(site.config) as client:
        report = {item.node: item for item in client.nodes()}["here"]
    assert report.devices == [now, instance]
    assert report.gpus == [now]
    assert (report.version, report.last_seen_s) == ("9.9", site.clock.now)


def test_only_a_node_itself_counts_as_seen(site: Running) -> None:
    body = b'{"wire": 1, "node": "n1", "boot_id": "b"}'
    before = site.raw("GET", "/v1/nodes", b"", site.signed("GET", "/v1/nodes"))[1]["nodes"]
    assert site.raw("POST", "/v1/node", body, site.signed("POST", "/v1/node", body))[0] == 200
    after = site.raw("GET", "/v1/nodes", b"", site.signed("GET", "/v1/nodes"))[1]["nodes"]
    assert after == before
    assert "n1" not in {item["node"] for item in after}


def test_a_measured_zero_is_reported_as_zero(site: Running) -> None:
    ship(site, records=[here(power_w=Mean(10.0, 0.0, 0.0, 0.0))], hosts=[host(node="here", cpu_s=0.0)])
    account(site)
    with DatabaseClient(site.config) as client:
        (run,) = client.run("1")
    assert run.hosts is not None
    assert run.devices is not None
    assert (run.hosts[0].cpu_s, run.devices[0].power_w) == (0.0, Mean(10.0, 0.0, 0.0, 0.0))
