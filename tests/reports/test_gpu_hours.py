"""GPU-hours by user = by team = by account = by server type = by zone = Σ allocated GPU time."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.config.site import ServerType, SiteConfig, Zone
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.reports.load import load
from slurm_gpu.reports.period import ReportPeriod
from tests.database.conftest import empty
from tests.reports.counting import by_key, by_place
from tests.reports.filling import insert, insert_nodes
from tests.reports.generated import Node
from tests.reports.world import RECORD, run_row

PERIOD = ReportPeriod(since=date(2026, 3, 10), until=date(2026, 3, 12))
SINCE_S, UNTIL_S = PERIOD.since_s, PERIOD.until_s
NODES = [f"n{i}" for i in range(1, 7)]
MGPU = [0, 1, 125, 250, 333, 500, 1000, 1000, 2000, 3000, 7000, None]
TEAMS = {"a": "red", "b": "red", "c": "blue"}
# The nodes in slurm-gpu.yaml, which does not name n6 and has no zone for n5.
TYPES = {"n1": "a100", "n2": "a100", "n3": "v100", "n4": "v100", "n5": "v100"}
ZONES = {"n1": "east", "n2": "west", "n3": "east", "n4": "west"}
SITE = SiteConfig(
    cluster="c",
    team=TEAMS,
    server_types={"a100": ServerType("n[1-2]", 1.5), "v100": ServerType("n[3-5]")},
    zones={"east": Zone("n1,n3"), "west": Zone("n2,n4")},
)

moments = st.integers(SINCE_S - 90_000, UNTIL_S + 90_000)
places = st.sampled_from([None, "a100", "old"]), st.sampled_from([None, "east", "attic"])


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    start_s = draw(st.none() | moments)
    submit_s = draw(moments)
    if start_s is not None and draw(st.integers(0, 9)):
        submit_s = min(submit_s, start_s)
    nodes = [] if start_s is None else draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True))
    end_s = draw(st.none() | st.integers(0, 200_000).map((start_s or submit_s).__add__))
    recorded = {
        node: draw(st.sampled_from([None, 250, 1000, 3000])) for node in nodes if draw(st.integers(0, 7))
    }
    return {
        "user": draw(st.sampled_from(["u", "v", "w"])),
        "account": draw(st.sampled_from(["a", "b", "c", "d"])),
        "submit_s": submit_s,
        "start_s": start_s,
        "end_s": end_s,
        "mgpu": draw(st.sampled_from(MGPU)),
        "nodes": nodes,
        "recorded": recorded if draw(st.booleans()) else {},
    }


courses = st.dictionaries(
    st.sampled_from(NODES),
    st.lists(st.tuples(moments, *places), min_size=1, max_size=3, unique_by=lambda entry: entry[0]),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path_factory.mktemp('small') / 'x.db'}")
    made.upgrade()
    yield made
    made.dispose()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(runs(), min_size=1, max_size=24), courses=courses)
def test_all_sums_of_gpu_hours_are_equal(
    small: Database, some: list[dict[str, Any]], courses: dict[str, list[tuple[int, str | None, str | None]]]
) -> None:
    now_s = UNTIL_S - 3600
    empty(small)
    rows = [run_row(number, one) for number, one in enumerate(some, 1)]
    insert(small, "run", list(rows[0]), [list(row.values()) for row in rows])
    records = [
        [f"{number:08x}{place:08x}", f"GPU-{node}", number, number, node, mgpu]
        for number, one in enumerate(some, 1)
        for place, (node, mgpu) in enumerate(one["recorded"].items())
    ]
    insert(small, "run_device", RECORD.names, [RECORD.row(*record) for record in records])
    for node, course in courses.items():
        for from_s, server_type, zone in course:
            insert_nodes(small, [Node(node, server_type, zone, 8)], from_s)

    jobs = load(small, SITE, PERIOD, now_s).jobs

    total = sum(by_key(some, "user", SINCE_S, UNTIL_S, now_s).values())
    shares = jobs.shares
    assert int(shares.mgpu_s.sum()) == total
    for key, column in (("user", jobs.user), ("account", jobs.account)):
        allocated = dict(zip(column.names, shares.of(column).sums(shares.mgpu_s).tolist(), strict=True))
        expected = by_key(some, key, SINCE_S, UNTIL_S, now_s)
        assert {name: allocated.get(name, 0) for name in expected} == expected
    with_team = [{**one, "team": TEAMS.get(one["account"], one["account"])} for one in some]
    teams = dict(zip(jobs.team.names, shares.of(jobs.team).sums(shares.mgpu_s).tolist(), strict=True))
    assert {k: v for k, v in teams.items() if v} == {
        k: v for k, v in by_key(with_team, "team", SINCE_S, UNTIL_S, now_s).items() if v
    }
    exact = by_place(some, courses, (TYPES, ZONES), SINCE_S, UNTIL_S, now_s)
    for which, column in ((0, shares.server_type), (1, shares.zone)):
        sums = dict(zip(column.names, column.sums(shares.mgpu_s).tolist(), strict=True))
        assert sum(sums.values()) == total
        for name in sums.keys() | {place[which] for place in exact}:
            truth = sum(part for place, part in exact.items() if place[which] == name)
            # Each share of a run is a whole number of GPU/1000 × seconds.
            assert abs(sums.get(name, 0) - truth) < len(some) * len(NODES)
