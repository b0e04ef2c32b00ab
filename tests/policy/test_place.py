"""Zones keep users' constraints, give constraints that Slurm accepts, and change no other jobs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.controller.placement.zone_wait import written_zones
from slurm_gpu.placement.zone_constraint import can_be_joined, taken_apart
from slurm_gpu.policy.explain.placement_text import zones_in_words
from slurm_gpu.policy.lua.bundle import build_bundle, lua_directory
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScalarFields, ScriptDecision, ZoneDecision

from .compile import compiled
from .fuzzing import examples, is_long, seeded
from .model import Request, RuleModel
from .render import PARTITIONS, description, record, snapshot
from .strategies import every_request
from .zonecluster import (
    CLUSTERS,
    OWN,
    ZONES,
    Cluster,
    allowed,
    distributed,
    has_room_for,
    is_accepted_by_slurm,
    make_node,
)

NOW_S = 1_000_000
JOBS = st.one_of(distributed(), distributed(), distributed(), every_request())
JOBS_AT_ONCE = 8
RULE = RuleModel("share", "user", limits={"gpus_total": 10**9})
TWO_NODES = Request(uid=1001, account="vision", per_node=2, nodes=2)


def two_zones(nodes: int = 2) -> Cluster:
    return Cluster(
        tuple(
            make_node(f"{zone}-{n}", zone, ["a100"], ["gpu", "long"])
            for zone in ZONES[:2]
            for n in range(nodes)
        ),
        roles=("small", "large", "medium"),
    )


class Site:
    """A script and its snapshot."""

    def __init__(self, directory: Path, lua: str = "5.4") -> None:
        self.directory, self.generation, self.now_s = directory, 0, NOW_S
        self.log, self.snapshot = directory / "decisions.log", directory / "snapshot.txt"
        self.log.write_text("")
        table = compiled(
            [RULE], str(self.log), snapshot=str(self.snapshot), partition_gpus={"gpu": 4, "long": 4}
        )
        self.bundle = build_bundle(table)
        self.script = PolicyScript(self.bundle, lua=lua, writes=True, now=lambda: self.now_s)

    def show(self, cluster: Cluster | None, mode: str = "enforce") -> None:
        """Write a new snapshot, without zones if there is no cluster."""
        self.generation += 1
        text = snapshot(self.generation, self.now_s, [RULE], [])
        lines = "".join(f"{line}\n" for line in (cluster.lines(mode) if cluster else []))
        self.snapshot.write_text(text.replace(f"\nend {self.generation}", f"\n{lines}end {self.generation}"))
        self.now_s += 31  # earlier admissions are dropped
        self.snapshot.write_text(
            self.snapshot.read_text().replace(f" {self.now_s - 31}\n", f" {self.now_s}\n", 1)
        )

    def submit(self, job: Request = TWO_NODES, **more: object) -> ScriptDecision:
        desc: ScalarFields = description(job) | more  # type: ignore[operator]
        return self.script.submit(desc, PARTITIONS)

    @property
    def logged(self) -> str | None:
        """Return the zone field of the last decision."""
        match = re.search(r" zone=(\S+)", self.log.read_text().splitlines()[-1])
        return match and match[1]


@pytest.fixture(params=["5.1", "5.4"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    site = Site(tmp_path, request.param)
    site.show(two_zones())
    return site


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_users_constraints_are_kept_and_slurm_accepts_the_written_ones(tmp_path: Path, lua: str) -> None:
    site = Site(tmp_path, lua)
    placed = 0

    @seeded(lua)
    @settings(
        max_examples=math.ceil(examples(160, one_in=50) / len(LUA_VERSIONS)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=not is_long(),
    )
    @given(
        cluster=CLUSTERS,
        asked=st.lists(st.tuples(JOBS, OWN), min_size=JOBS_AT_ONCE, max_size=JOBS_AT_ONCE),
        mark=st.sampled_from([":", "/"]),
    )
    def check(cluster: Cluster, asked: list[tuple[Request, str | None]], mark: str) -> None:
        nonlocal placed
        site.show(cluster)
        for job, own in asked:
            desc = description(job, mark) | {"features": own}
            placed += is_well_placed(cluster, job, own, site.script.submit(desc, PARTITIONS))

    check()
    assert placed >= 160 / len(LUA_VERSIONS) / 3


def is_well_placed(cluster: Cluster, job: Request, own: str | None, verdict: ScriptDecision) -> bool:
    """Return whether zones were written; raise AssertionError if they are wrong."""
    assert not [text for level, text in verdict.log if level == "error"]
    if not verdict.accepted:
        assert "All shards of a job on a node come from one GPU" in verdict.messages[0]
        return False
    after = verdict.desc.get("features")
    if after == own:
        assert " z=" not in verdict.desc["admin_comment"]
        return False
    assert can_be_joined(own or "", ZONES)
    written = taken_apart(after)
    assert written is not None
    assert written.own == (own or "")
    assert written_zones(verdict.desc["admin_comment"]) == set(written.zones)
    assert is_accepted_by_slurm(after)
    least = max(job.least_nodes, math.ceil(job.asked_mgpu / 1000 / cluster.most_gpus(job.partitions)))
    assert least >= 2
    fewest = replace(job, nodes=least, most_nodes=None) if job.counted_nodes > least else job
    for zone in written.zones:
        for name in job.partitions:
            here = [node for node in cluster.in_partition(name) if allowed(after, zone, node)]
            assert all(zone in node.features for node in here)
            able = sum(has_room_for(node, fewest, least) for node in here)
            assert able >= max(least, job.counted_nodes), (zone, name)
    return True


def test_the_zone_with_the_best_score_comes_first(site: Site) -> None:
    verdict = site.submit()
    assert verdict.desc["features"] == "[zone2|zone1]"  # zone2 is for large jobs
    assert verdict.desc["admin_comment"].endswith(" r=share z=zone2:700,zone1:0")
    assert site.logged == "enforce:zone2:700,zone1:0"
    assert verdict.messages == ()


@pytest.mark.parametrize(
    ("own", "written"),
    [
        ("a100", "a100&[zone2|zone1]"),
        ("a100|h100", "(a100|h100)&[zone2|zone1]"),
        ("a100&a100", "(a100&a100)&[zone2|zone1]"),
    ],
)
def test_the_users_constraint_comes_before_the_zones(site: Site, own: str, written: str) -> None:
    assert site.submit(features=own).desc["features"] == written


@pytest.mark.parametrize("own", ["[a100|h100]", "a100*2", "(a100|h100)", "a100&b|c", "a100,b", "a100 "])
def test_a_constraint_that_cannot_be_extended_is_kept_and_reported_to_its_owner(site: Site, own: str) -> None:
    verdict = site.submit(features=own)
    assert verdict.desc["features"] == own
    assert verdict.messages[0].startswith("This job may span several zones: zones cannot be")
    assert site.logged == "enforce:-:constraint"
    site.show(two_zones(), "observe")
    assert site.submit(features=own).messages == ()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"req_nodes": "n1"}, "nodelist"),
        ({"exc_nodes": "n1"}, "exclude"),
        ({"prefer": "a100"}, "prefer"),
        ({"reservation": "big"}, "reservation"),
        ({"req_switch": 1}, "switches"),
        ({"het_job_offset": 0}, "het"),
        ({"threads_per_core": 1}, "threads"),
        ({"contiguous": 1}, "contiguous"),
        ({"tres_per_node": "gres/gpu:2,gres/ib:1"}, "gres"),
        ({"tres_per_task": "gres/gpu:1,license/matlab:1"}, "gres"),
        ({"features": "zone1"}, "zone"),
        ({"features": "missing"}, "room"),
        ({"min_cpus": 65}, "room"),
        ({"min_mem_per_node": 100_001}, "room"),
        ({"min_nodes": 3, "max_nodes": 3}, "room"),
        ({"max_nodes": 3}, "room"),
        ({"tres_per_node": "gres/gpu:v100:2"}, "room"),
        ({"tres_per_node": "gres/gpu:5"}, "room"),
    ],
)
def test_jobs_that_choose_nodes_or_might_be_refused_get_no_zone(
    site: Site, more: dict[str, object], why: str
) -> None:
    verdict = site.submit(**more)
    assert verdict.accepted
    assert verdict.desc.get("features") == more.get("features")
    assert " z=" not in verdict.desc["admin_comment"]
    assert verdict.messages == ()
    assert site.logged == f"enforce:-:{why}"


@pytest.mark.parametrize(
    "job",
    [
        Request(uid=1001, account="vision", per_job=4),
        Request(uid=1001, account="vision", per_node=4),
        Request(uid=1001, account="vision", per_task=1, n_tasks=4),
        Request(uid=1001, account="vision", nodes=2),
        Request(uid=1001, account="vision", shards_per_node=4),
    ],
)
def test_a_job_that_may_fit_one_node_or_has_no_gpus_gets_no_zone(site: Site, job: Request) -> None:
    assert "features" not in site.submit(job).desc
    assert site.logged is None


@pytest.mark.parametrize(
    "job",
    [
        Request(uid=1001, account="vision", per_job=5),
        Request(uid=1001, account="vision", per_task=1, n_tasks=8),
        Request(uid=1001, account="vision", per_node=1, n_tasks=8, tasks_per_node=4),
        Request(uid=1001, account="vision", nodes=2, exclusive=True),
        Request(uid=1001, account="vision", nodes=2, most_nodes=2, per_node=4, mib_per_gpu=25_000),
    ],
)
def test_a_job_that_needs_several_nodes_implicitly_gets_a_zone(site: Site, job: Request) -> None:
    assert site.submit(job).desc["features"] == "[zone2|zone1]"


def test_a_zone_must_have_the_maximum_of_a_range_of_nodes(site: Site) -> None:
    job = Request(uid=1001, account="vision", per_node=4, nodes=2, most_nodes=4, mib_per_gpu=25_000)
    site.show(two_zones(4))
    assert site.submit(job).desc["features"] == "[zone2|zone1]"
    site.show(two_zones(3))
    assert site.submit(job).desc.get("features") is None
    assert site.logged == "enforce:-:room"


def test_only_zones_with_enough_nodes_are_named(site: Site) -> None:
    small, large = two_zones(2).of("zone1"), two_zones(3).of("zone2")
    site.show(Cluster((*small, *large)))
    job = replace(TWO_NODES, nodes=3)
    assert site.submit(job).desc["features"] == "[zone2]"


def test_a_zone_must_have_the_nodes_in_each_partition_of_the_job(site: Site) -> None:
    nodes = two_zones().nodes
    only_gpu = [replace(node, partitions=["gpu"]) if node.name == "zone2-0" else node for node in nodes]
    site.show(Cluster(tuple(only_gpu)))
    job = replace(TWO_NODES, partition="long,gpu")
    assert site.submit(job).desc["features"] == "[zone1]"


def test_a_job_in_a_partition_without_zones_gets_no_zone(site: Site) -> None:
    nodes = [replace(node, partitions=["gpu"]) for node in two_zones().nodes]
    site.show(Cluster(tuple(nodes)))
    for partition in ("long", "long,gpu"):
        assert site.submit(replace(TWO_NODES, partition=partition)).desc.get("features") is None
        assert site.logged is None


def test_mode_observe_only_logs_zones_and_mode_advise_only_prints_them(site: Site) -> None:
    for mode in ("observe", "advise"):
        site.show(two_zones(), mode)
        verdict = site.submit()
        assert "features" not in verdict.desc
        assert " z=" not in verdict.desc["admin_comment"]
        assert site.logged == f"{mode}:zone2:700,zone1:0"
        assert bool(verdict.messages) is (mode == "advise")
    assert "--constraint='[zone2|zone1]'" in "".join(verdict.messages)


def test_without_zones_in_a_fresh_snapshot_jobs_get_no_zone(site: Site) -> None:
    site.show(None)
    assert site.submit().desc.get("features") is None
    site.show(two_zones())
    assert site.submit().desc.get("features") == "[zone2|zone1]"
    site.now_s += 31
    assert site.submit().desc.get("features") is None
    assert site.logged is None
    site.show(two_zones())
    text = site.snapshot.read_text()
    for damaged in (text[:-20], text.replace("placement enforce", "placement whatever"), ""):
        site.snapshot.write_text(damaged)
        verdict = site.submit()
        assert verdict.accepted
        assert verdict.desc.get("features") is None


def test_equal_jobs_get_equal_zones_until_the_zones_change(site: Site) -> None:
    assert {site.submit().desc["features"] for _ in range(3)} == {"[zone2|zone1]"}
    busy = [
        replace(node, state="idle+drain") if node.name == "zone2-0" else node for node in two_zones().nodes
    ]
    site.show(Cluster(tuple(busy)))
    assert {site.submit().desc["features"] for _ in range(3)} == {"[zone1]"}


def test_changed_nodes_count_from_the_next_snapshot_on(site: Site) -> None:
    """Node pools that are unchanged in the snapshot are not parsed again."""
    for n_nodes, written in ((2, "[zone2|zone1]"), (2, "[zone2|zone1]"), (1, None), (2, "[zone2|zone1]")):
        site.show(two_zones(n_nodes))
        assert site.submit().desc.get("features") == written


def test_an_update_by_the_owner_is_not_changed(site: Site) -> None:
    before = record(7, TWO_NODES) | {"features": "[zone2|zone1]"}
    verdict = site.script.modify({"features": "a100"}, before, PARTITIONS)
    assert verdict.accepted
    assert verdict.desc["features"] == "a100"


def test_explain_reports_zones_and_has_a_text_for_each_reason(site: Site) -> None:
    bundle = build_bundle(
        compiled([RULE], str(site.log), snapshot=str(site.snapshot), partition_gpus={"gpu": 4, "long": 4})
    )
    script = PolicyScript(bundle, now=lambda: site.now_s, considers=True)
    placed = script.submit(description(TWO_NODES) | {"features": "a100"}, PARTITIONS).placed
    assert placed == ZoneDecision("enforce", (("zone2", 700), ("zone1", 0)), None, "a100&[zone2|zone1]")
    assert zones_in_words(placed).endswith("the job is kept in one zone: zone2 or zone1")
    assert zones_in_words(replace(placed, mode="advise")) == (
        "The job's nodes would be close together in one zone: zone2 or zone1; "
        "use --constraint='a100&[zone2|zone1]'"
    )
    assert script.submit(description(replace(TWO_NODES, nodes=1)), PARTITIONS).placed is None
    source = (lua_directory() / "place.lua").read_text()
    words = set(re.findall(r'^  \{ "\w+", "(\w+)"', source, re.MULTILINE)) | set(
        re.findall(r'place\.why(?:, place\.zones)? = "(\w+)"', source)
    )
    assert {"nodelist", "room", "constraint", "zone", "gres"} <= words
    assert not [
        word for word in words if zones_in_words(ZoneDecision("enforce", why=word)).endswith(f": {word}")
    ]


FEATURES = """placement enforce medium=1
features gpu
order 1000 4 1 t4,a100
order 1000 8 1 a100,t4
order 2000 4 1 a100,t4
"""
ONE_NODE = Request(uid=1001, account="vision", per_node=1)


def one_gpu(cpus: int = 4) -> dict[str, object]:
    cores = {"min_cpus": cpus, "cpus_per_task": cpus}
    return {"tres_per_node": "gres:gpu:1", "min_mem_per_node": 1, **cores}


def with_features(site: Site, mode: str = "enforce") -> Site:
    site.show(None)
    text, end = site.snapshot.read_text(), f"end {site.generation}"
    lines = FEATURES.replace("enforce", mode)
    site.snapshot.write_text(text.replace(f"\n{end}", f"\n{lines}{end}"))
    return site


@pytest.mark.parametrize(("cpus", "written"), [(4, "[t4|a100]"), (8, "[a100|t4]"), (5, None)])
def test_a_job_on_one_node_uses_types_of_nodes_in_the_order_of_its_class(
    site: Site, cpus: int, written: str | None
) -> None:
    verdict = with_features(site).submit(ONE_NODE, **one_gpu(cpus))
    assert verdict.messages == ()
    assert verdict.desc.get("features") == written
    comment = verdict.desc["admin_comment"]
    assert written_zones(comment) == (set() if written is None else {"t4", "a100"})
    assert site.logged is None


@pytest.mark.parametrize(
    "more",
    [
        {"features": "a100"},
        {"prefer": "a100"},
        {"req_nodes": "n1"},
        {"reservation": "sg_1"},
        {"het_job_offset": 0},
        {"tres_per_node": "gres:gpu:a100:1"},
        {"tres_per_node": "gres:gpu:2", "num_tasks": 2},
        {"tres_per_node": None, "tres_per_job": "gres:gpu:2"},
        {"num_tasks": 2},
        {"max_nodes": 2},
        {"shared": 0},
        {"partition": "gpu,long"},
    ],
)
def test_a_job_that_might_lose_nodes_by_an_order_is_left_unchanged(
    site: Site, more: dict[str, object]
) -> None:
    assert with_features(site).submit(ONE_NODE, **one_gpu()).desc["features"] == "[t4|a100]"
    verdict = with_features(site).submit(ONE_NODE, **(one_gpu() | more))
    assert verdict.accepted
    assert verdict.desc.get("features") == more.get("features")
    assert " o=" not in verdict.desc["admin_comment"]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_orders_are_written_only_with_enforce(site: Site, mode: str) -> None:
    verdict = with_features(site, mode).submit(ONE_NODE, **one_gpu())
    assert verdict.desc.get("features") is None
