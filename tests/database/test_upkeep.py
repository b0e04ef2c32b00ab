"""Node periods are stored on changes, and old details are deleted."""

from typing import Any

import pytest
from sqlalchemy import Connection, select

from slurm_gpu.config.site import Retention, ServerType, SiteConfig, Zone
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.slurm_view import NODES_FOR_S, SlurmView
from slurm_gpu.database.accounting.writer import ArrivedWindow, store_events, store_records, store_windows
from slurm_gpu.database.maintenance import pruning
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.maintenance.upkeep import LATE_EVERY_S, PRUNE_EVERY_S, Upkeep
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import event, node_period, run, run_device, run_window
from slurm_gpu.errors import UsageError
from slurm_gpu.wire import Event, Window
from tests.database.samples import T0, FakeClock, MemorySlurm, node, record, row, segment, timeline

_DAY_S = 86400


class World:
    """An Upkeep with a Slurm of one node and a clock."""

    def __init__(self, database: Database, places: Places | None = None) -> None:
        self.database, self.clock, self.slurm = database, FakeClock(), MemorySlurm()
        self.slurm.node_list = [node(1)]
        self.view = SlurmView(self.slurm, self.clock, lambda name: frozenset({name}))
        retention = Retention(timelines_s=90.0 * _DAY_S, windows_s=7.0 * _DAY_S, events_s=365.0 * _DAY_S)
        self.upkeep = Upkeep(database, self.clock, places, retention)

    def later(self, seconds: float, *nodes: Any) -> list[tuple[Any, ...]]:
        """Advance the clock, run one pass with the given nodes, and return the stored periods."""
        self.clock.now += seconds
        if nodes:
            self.slurm.node_list = list(nodes)
        self.upkeep.run_once(self.view.nodes())
        with self.database.reading() as connection:
            query = select(node_period).order_by(node_period.c.node, node_period.c.from_s)
            return [
                (r["node"], r["from_s"] - T0, r["gpus"], r["cpus"], r["memory_mib"], r["state"])
                for r in connection.execute(query).mappings()
            ]


def test_a_period_begins_only_when_something_changed(database: Database) -> None:
    world = World(database)
    begun = [("n1", 0, 4, 32, 100_000, "up")]
    assert world.later(0) == begun
    assert world.later(100, node(1, state="allocated", cpus_allocated=32)) == begun
    begun.append(("n1", 200, 4, 32, 100_000, "down+drain"))
    assert world.later(100, node(1, state="down+drain", reason="disk")) == begun
    begun.append(("n1", 300, 3, 32, 100_000, "up"))
    assert world.later(100, node(1, state="mixed", gpus={"a100": 3})) == begun


def test_a_restart_of_slurmctld_takes_no_node_out_of_service(database: Database) -> None:
    world = World(database)
    begun = [("n1", 0, 4, 32, 100_000, "up")]
    assert world.later(0) == begun
    assert world.later(100, node(1, state="unknown+not_responding")) == begun
    assert world.later(100, node(1)) == begun
    assert world.later(100, node(1, state="idle+not_responding")) == begun
    assert world.later(100) == begun
    begun.append(("n1", 300, 4, 32, 100_000, "not_responding"))
    assert world.later(100) == begun, "it has been so since then"
    begun.append(("n1", 600, 4, 32, 100_000, "down+not_responding"))
    assert world.later(100, node(1, state="down+not_responding")) == begun


def test_a_node_that_leaves_slurm_is_gone_from_then(database: Database) -> None:
    world = World(database)
    world.later(0, node(1), node(2))
    gone = [("n1", 0, 4, 32, 100_000, "up"), ("n2", 0, 4, 32, 100_000, "up"), ("n2", 100, 0, 0, 0, "gone")]
    assert world.later(100, node(1)) == gone
    assert world.later(100) == gone
    assert world.later(100, node(1), node(2)) == [*gone, ("n2", 300, 4, 32, 100_000, "up")]


def test_an_unreachable_slurmctld_changes_no_period(database: Database) -> None:
    world = World(database)
    world.slurm.unavailable = True
    assert world.later(0) == []
    world = World(database)
    begun = world.later(0)
    assert len(begun) == 1
    world.slurm.unavailable = True
    assert world.later(2 * NODES_FOR_S) == begun


def test_periods_follow_each_other_though_the_clock_was_set_back(database: Database) -> None:
    world = World(database)
    world.later(0)
    world.clock.now += 1000
    world.later(0)
    world.view._nodes._renew_at = 0  # query Slurm again regardless of the clock
    assert [item[1] for item in world.later(-1500, node(1, cpus=64))] == [0, 1]


def test_places_come_from_the_site_file(database: Database) -> None:
    config = SiteConfig(
        cluster="lab",
        server_types={"a100": ServerType("n[1-2]"), "v100": ServerType("n3")},
        zones={"small": Zone("n1,n3")},
    )
    world = World(database, Places.of(config))
    world.later(0, node(1), node(2))
    with database.reading() as connection:
        rows = connection.execute(select(node_period)).mappings()
        assert [(r["node"], r["server_type"], r["zone"]) for r in rows] == [
            ("n1", "a100", "small"),
            ("n2", "a100", None),
        ]


@pytest.mark.parametrize(
    ("zones", "complaint"),
    [
        ({"a": Zone("n[1-")}, r"slurm-gpu.yaml: zones.a.nodes: "),
        ({"a": Zone("n[1-3]"), "b": Zone("n3")}, "slurm-gpu.yaml: zones: n3 is in a and in b"),
    ],
)
def test_a_place_that_cannot_be_is_named(zones: dict[str, Zone], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Places.of(SiteConfig(cluster="lab", zones=zones))


def test_timelines_and_windows_go_when_they_are_too_old(database: Database) -> None:
    def kept() -> tuple[list[str], list[str]]:
        with database.reading() as connection:
            query = select(run_device.c.segment).where(run_device.c.timeline.is_not(None))
            timelines = list(connection.execute(query.order_by(run_device.c.segment)).scalars())
            windows = sorted(connection.execute(select(run_window.c.segment)).scalars())
        return [name[-1] for name in timelines], [name[-1] for name in windows]

    def ship(n: int, first_s: int) -> None:
        sent = record(segment=segment(n), first_s=first_s, timeline=timeline(1, 2, start_s=first_s))
        database.write(lambda connection: store_records(connection, [sent]))
        window = Window(
            job_id=1, segment=segment(n), device="GPU-1", start_s=5, width_s=1, series={"util_pct": b""}
        )
        database.write(lambda connection: store_windows(connection, [ArrivedWindow(window, "n1", first_s)]))

    world = World(database)
    ship(1, T0 - 91 * _DAY_S)
    ship(2, T0 - 8 * _DAY_S)
    ship(3, T0)
    world.later(0)
    assert kept() == (["2", "3"], ["3"])
    world.later(60)
    ship(4, T0 - 95 * _DAY_S)
    assert kept() == (["2", "3", "4"], ["3", "4"])
    world.later(PRUNE_EVERY_S)
    assert kept() == (["2", "3", "4"], ["3"])
    world.later(LATE_EVERY_S)
    assert kept() == (["2", "3"], ["3"])
    world.later(83 * _DAY_S)
    assert kept() == (["3"], [])
    with database.reading() as connection:
        assert len(connection.execute(select(run_device.c.statistics)).all()) == 4


def test_records_without_a_run_expire_by_their_age_and_may_still_match(database: Database) -> None:
    _store_old(database, 100, 5)
    World(database).later(0)
    with database.reading() as connection:
        query = select(run_device.c.run_id, run_device.c.timeline.is_(None)).order_by(run_device.c.segment)
        assert [tuple(found) for found in connection.execute(query)] == [(None, True), (None, False)]
    old_s = T0 - 100 * _DAY_S
    late = run_row(row(job_id=1, submit_s=old_s - 60, start_s=old_s, end_s=old_s + 10), {})
    database.write(lambda connection: store_changed_runs(connection, [late]))
    reconcile(database)
    with database.reading() as connection:
        assert connection.execute(select(run.c.ugpucore)).scalars().all() == [40.0]


def test_events_go_when_they_are_too_old(database: Database) -> None:
    def kept() -> list[int]:
        with database.reading() as connection:
            return sorted(connection.execute(select(event.c.n)).scalars())

    days_ago = {1: 366, 2: 364, 3: 0}
    events = [
        Event(node="n1", boot_id="b", n=n, at_s=T0 - days * _DAY_S, kind="gpu_lost")
        for n, days in days_ago.items()
    ]
    database.write(lambda connection: store_events(connection, events))
    world = World(database)
    world.later(0)
    assert kept() == [2, 3]
    world.later(2 * _DAY_S)
    assert kept() == [3]


def pruned_batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Record the table, start and number of changed rows of each pruning transaction."""
    found: list[tuple[str, int, int]] = []
    right = pruning._prune_some

    def watched(connection: Connection, **given: Any) -> tuple[int, int | None]:
        n, next_s = right(connection, **given)
        found.append((given["at"].table.name, given["from_s"] - T0, n))
        return n, next_s

    monkeypatch.setattr(pruning, "_prune_some", watched)
    return found


def _store_old(database: Database, *days_ago: int) -> None:
    reported = [
        record(segment=segment(n), first_s=T0 - days * _DAY_S, timeline=timeline(1, start_s=T0))
        for n, days in enumerate(days_ago)
    ]
    database.write(lambda connection: store_records(connection, reported))


def test_old_rows_are_dropped_in_parts_that_block_no_shipment(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_ROWS_AT_ONCE", 3)
    _store_old(database, *range(100, 110), 5)
    found = pruned_batches(monkeypatch)
    World(database).later(0)
    assert [n for table, _, n in found if table == "run_device"] == [3, 3, 3, 1]
    with database.reading() as connection:
        left = connection.execute(select(run_device.c.segment).where(run_device.c.timeline.is_not(None)))
        assert left.scalars().all() == [segment(10)]


def test_it_continues_after_a_restart(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    _store_old(database, 1000, 100)
    World(database).later(0)
    found = pruned_batches(monkeypatch)
    again = World(database)
    again.later(60)
    again.later(PRUNE_EVERY_S)
    begun = [from_s for table, from_s, _ in found if table == "run_device"]
    assert begun == [-120 * _DAY_S, -90 * _DAY_S + 60], "late rows are searched once a day, too"


def test_a_clock_that_was_ahead_for_a_while_keeps_nothing_from_going(database: Database) -> None:
    world = World(database)
    world.later(500 * _DAY_S)
    _store_old(database, 50)
    world.later(PRUNE_EVERY_S - 500 * _DAY_S)
    world.upkeep._prune_at = world.upkeep._late_at = 0  # counters of seconds have continued
    world.later(0)
    world.later(60 * _DAY_S)
    with database.reading() as connection:
        assert connection.execute(select(run_device.c.timeline)).scalars().all() == [None]
