"""slurm-gpuctld and weights of nodes: the site's own come back whatever happens, nothing else is touched."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.config import Placement, SiteConfig, Zone
from slurm_gpu.controller import placementtable, weightmemory
from slurm_gpu.controller.acts import Acts
from slurm_gpu.controller.nodelooks import NodeLooks
from slurm_gpu.controller.placementtable import PlacementTable
from slurm_gpu.controller.weights import CYCLE_S, WeightKeeper
from slurm_gpu.database.results import Act
from slurm_gpu.errors import DatabaseError, SlurmError, UsageError
from slurm_gpu.slurm.client import SlurmctldHost

from .fakes import Clock, Slurm, make_node

CONF = "NodeName=n[1-4] Gres=gpu:a100:4\nNodeName=c1\nPartitionName=gpu Nodes=ALL\n"
BUSY = {"n1": 1, "n2": 3, "n3": 2, "n4": 0}
PACKED = {"n1": 5, "n2": 3, "n3": 4, "n4": 6, "c1": 1}
"""What BUSY comes to: c1 keeps its 1, and nodes with GPUs come after it, the fullest first."""


class Site:
    """A cluster of four nodes of four GPUs and one without, and slurm-gpuctld as it is started and ended."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.clock = directory, Clock()
        self.conf = directory / "slurm.conf"
        self.conf.write_text(CONF)
        self.slurm = Slurm(self.clock, str(self.conf))
        self.slurm.hosts = [SlurmctldHost("head", is_up=True)]
        self.slurm.node_list = [make_node("c1", gpus={}, gpus_allocated={}, shards=0)]
        self.told: list[Act] = []
        self.busy(BUSY)
        self.running = 0

    def busy(self, gpus: dict[str, int], **more: Any) -> None:
        """Have so many GPUs of each node in use, with their share of cores."""
        weights = {node.name: node.weight for node in self.slurm.node_list}
        self.slurm.node_list = [
            *(node for node in self.slurm.node_list if node.name not in gpus),
            *(
                make_node(
                    name,
                    gpus_allocated={"a100": n},
                    cpus_allocated=8 * n,
                    weight=weights.get(name, 1),
                    **more,
                )
                for name, n in gpus.items()
            ),
        ]

    def start(self, mode: str = "enforce", host: str = "head", **placement: Any) -> WeightKeeper:
        config = SiteConfig(
            cluster="lab", placement=Placement(mode, **placement), zones={"zone1": Zone("n[1-2]", "small")}
        )
        self.keeper = WeightKeeper(
            config, self.directory, self.slurm, NodeLooks(self.slurm, self.clock), self.clock,
            Acts(self.clock, self.told.extend), lambda: 0.0, host,
        )  # fmt: skip
        self.keeper.turn(self.running)
        return self.keeper

    def turn(self, after_s: float = CYCLE_S) -> None:
        self.clock.advance(after_s)
        self.keeper.turn(self.running)

    @property
    def weights(self) -> dict[str, int]:
        return {node.name: node.weight for node in self.slurm.node_list}

    @property
    def memory(self) -> Path:
        return self.directory / "slurm-gpu" / "weights.json"

    def table(self) -> PlacementTable:
        found = placementtable.read(self.directory / "placement.json")
        assert found is not None
        return found

    def stop(self) -> list[str]:
        self.keeper.stop()
        return [act.act for act in self.told]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


ALL_ONE = dict.fromkeys(PACKED, 1)


def test_the_fullest_comes_first_and_nodes_without_gpus_are_left_alone(site: Site) -> None:
    site.start()
    assert site.weights == PACKED
    assert site.slurm.set_calls == [(3, ["n2"]), (4, ["n3"]), (5, ["n1"]), (6, ["n4"])]


def test_only_what_changed_is_set_and_nodes_of_one_weight_in_one_call(site: Site) -> None:
    site.start()
    site.slurm.set_calls.clear()
    site.turn()
    assert site.slurm.set_calls == []
    site.busy({"n1": 0, "n2": 4, "n3": 0})
    site.turn()
    assert site.slurm.set_calls == [(2, ["n2"]), (6, ["n1", "n3"])]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_without_enforce_nothing_is_set_and_it_is_told_what_would_be(
    site: Site, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site.start(mode)
    site.turn()
    assert site.slurm.set_calls == []
    assert not site.memory.exists()
    assert {line.name: line.wanted for line in site.table().nodes} == {
        name: weight for name, weight in PACKED.items() if name != "c1"
    }
    typed = "scontrol update NodeName=n2 Weight=3; scontrol update NodeName=n3 Weight=4; "
    assert (typed in caplog.text) == (mode == "advise")
    assert site.stop() == []


def test_the_table_tells_what_was_seen_and_done(site: Site) -> None:
    site.start()
    table = site.table()
    assert (table.mode, table.in_charge, table.whole_free, table.by_hand) == ("enforce", True, 1, [])
    lines = {line.name: line for line in table.nodes}
    assert (lines["n2"].busy, lines["n2"].gpus, lines["n2"].zone, lines["n3"].zone) == (3, 4, "zone1", None)
    assert (lines["n2"].weight, lines["n2"].wanted, lines["n2"].site, lines["n2"].ours) == (3, 3, 1, True)
    assert (lines["n4"].whole, lines["n2"].whole) == (True, False)
    act = table.last_act
    assert act is not None
    assert (act.act, act.nodes, act.calls) == ("weights set", 4, 4)
    assert not table.is_stale(site.clock.wall())
    assert table.is_stale(site.clock.wall() + 3 * CYCLE_S + 1)


def test_the_sites_own_are_on_disk_before_the_first_is_set(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    own = site.slurm.set_weight

    def set_weight(nodes: Any, weight: int) -> None:
        seen.append(json.loads(site.memory.read_text()))
        own(nodes, weight)

    monkeypatch.setattr(site.slurm, "set_weight", set_weight)
    site.start()
    assert seen[0]["classes"] == [{"nodes": "n[1-4]", "site": 1, "ours": [2, 3, 4, 5, 6]}]


def test_after_a_reconfiguration_they_are_back_at_the_next_look_and_that_is_told(site: Site) -> None:
    site.start()
    site.slurm.forget_weights()
    site.turn()
    assert site.weights == PACKED
    assert site.stop() == ["node weights taken over", "node weights set again", "node weights given back"]


def test_a_stop_puts_the_sites_own_back(site: Site) -> None:
    site.start()
    acts = site.stop()
    assert site.weights == ALL_ONE
    assert not site.memory.exists()
    assert not (site.directory / "placement.json").exists()
    assert acts == ["node weights taken over", "node weights given back"]
    assert (site.told[0].old, site.told[0].new, site.told[0].subject) == ("1 of n[1-4]", "2 to 6", "n[1-4]")


def test_killed_at_every_call_whoever_comes_next_puts_them_back(tmp_path: Path) -> None:
    """Slurm is as it was when the daemon was killed; its memory of the site's own is that of the disk."""

    class KilledError(BaseException):
        pass

    for number in range(6):
        directory = tmp_path / str(number)
        directory.mkdir()
        site = Site(directory)
        calls = 0
        own = site.slurm.set_weight

        def set_weight(nodes: Any, weight: int, own: Any = own, last: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls > last:
                raise KilledError
            own(nodes, weight)

        site.slurm.set_weight = set_weight  # type: ignore[method-assign]
        try:
            site.start()
        except KilledError:
            assert number < 4
        site.slurm.set_weight = own  # type: ignore[method-assign]
        site.start()
        assert site.weights == PACKED
        site.stop()
        assert site.weights == ALL_ONE


def test_killed_and_started_in_another_mode_it_gives_them_back_first(site: Site) -> None:
    site.start()
    site.start("observe")  # the first was killed
    assert site.weights == ALL_ONE
    assert not site.memory.exists()


def test_the_sites_own_order_and_weights_come_back_as_they_were(site: Site) -> None:
    site.conf.write_text("NodeName=n[1-2] Weight=10\nNodeName=n[3-4] Weight=20\nNodeName=c1\n")
    own = {"n1": 10, "n2": 10, "n3": 20, "n4": 20, "c1": 1}
    site.slurm.forget_weights(own)
    site.start()
    assert site.weights == {"n2": 11, "n1": 13, "n3": 22, "n4": 24, "c1": 1}
    site.stop()
    assert site.weights == own


def test_a_weight_that_somebody_typed_is_left_alone_and_told_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.start()
    site.slurm.set_weight(["n3"], 500)
    site.turn()
    site.turn()
    assert site.weights == PACKED | {"n3": 500}
    assert caplog.text.count("Weight of n3 is neither the site's nor slurm-gpuctld's") == 1
    assert site.table().by_hand == ["n3"]
    site.slurm.set_weight(["n3"], 1)  # what doctor says to type
    site.turn()
    assert site.weights == PACKED
    site.slurm.set_weight(["n3"], 500)
    site.stop()
    assert site.weights == ALL_ONE | {"n3": 500}


def test_a_weight_that_slurm_conf_says_now_is_the_sites_own(site: Site) -> None:
    site.start()
    site.conf.write_text(CONF.replace("n[1-4]", "n[1-4] Weight=300"))
    site.slurm.forget_weights({"n1": 300, "n2": 300, "n3": 300, "n4": 300})
    site.turn()
    assert site.table().by_hand == []
    assert site.weights == {"n2": 301, "n3": 302, "n1": 303, "n4": 304, "c1": 1}
    site.stop()
    assert site.weights == {"n1": 300, "n2": 300, "n3": 300, "n4": 300, "c1": 1}


def test_of_nodes_that_slurm_conf_does_not_name_the_first_weight_seen_is_the_sites(site: Site) -> None:
    site.conf.write_text("NodeName=c1\n")
    site.slurm.forget_weights({"n3": 7})
    site.start()
    assert site.weights["n3"] == 9
    site.stop()
    assert site.weights == ALL_ONE | {"n3": 7}


def test_a_node_that_is_managed_no_more_gets_its_own_back(site: Site) -> None:
    site.start()
    site.start(nodes="n[1-2]")  # the first was killed, and the file changed
    assert (site.weights["n3"], site.weights["n4"]) == (1, 1)
    # Now they count as nodes beside ours, of the same Weight: they come first, as nodes without GPUs do.
    assert (site.weights["n1"], site.weights["n2"]) == (5, 3)
    site.stop()
    assert site.weights == ALL_ONE


def test_a_node_that_takes_no_jobs_is_not_set_until_it_does(site: Site) -> None:
    site.busy({"n3": 2}, state="mixed+drain")
    site.start()
    assert site.weights == PACKED | {"n3": 1}
    site.busy({"n3": 2})
    site.turn()
    assert site.weights == PACKED


def test_nodes_of_other_partitions_are_none_of_ours(site: Site) -> None:
    site.busy({"n4": 0}, partitions=["private"])
    site.start(partitions=("gpu",))
    assert site.weights == PACKED | {"n4": 1}


def test_it_looks_when_jobs_start_or_end_and_else_once_in_a_cycle(site: Site) -> None:
    site.start()
    site.turn(3.0)
    site.slurm.asked.clear()
    site.turn(1.0)
    assert site.slurm.asked == []
    site.running += 1
    site.turn(1.0)
    assert site.slurm.asked == ["nodes"]
    site.turn(3.0)
    assert site.slurm.asked == ["nodes"] * 2  # once more, when epilogs have run
    site.turn(2.0)
    assert site.slurm.asked == ["nodes"] * 2
    site.turn(CYCLE_S)
    assert site.slurm.asked == ["nodes"] * 3


def test_with_a_backup_only_the_host_whose_slurmctld_is_in_charge_acts(site: Site) -> None:
    site.slurm.hosts = [SlurmctldHost("head", is_up=True), SlurmctldHost("spare", is_up=True)]
    head = site.start(host="head")
    spare = site.start(host="spare")
    calls = len(site.slurm.set_calls)
    assert site.weights == PACKED
    assert not site.table().in_charge
    # head goes away as a whole, and 22.05 on spare begins with the site's own.
    site.slurm.hosts[0] = SlurmctldHost("head", is_up=False)
    site.slurm.forget_weights()
    site.clock.advance(CYCLE_S)
    spare.turn(0)
    assert site.weights == PACKED
    assert len(site.slurm.set_calls) > calls
    # It is back, and the slurm-gpuctld on spare may end without taking anything away.
    site.slurm.hosts[0] = SlurmctldHost("head", is_up=True)
    site.clock.advance(CYCLE_S)
    head.turn(0)
    site.clock.advance(CYCLE_S)
    spare.turn(0)
    spare.stop()
    assert site.weights == PACKED
    head.stop()
    assert site.weights == ALL_ONE


def test_a_slurmctld_that_is_away_costs_a_line_and_a_stop_does_not_wait_for_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.start()
    site.slurm.away = True
    site.turn()
    site.turn()
    assert caplog.text.count("weights of nodes stay as they are: Unable to contact") == 1
    site.slurm.asked.clear()
    site.keeper.stop()
    assert site.slurm.asked == ["ping"]
    assert "`slurm-gpu placement release` does that" in caplog.text
    site.slurm.away = False
    site.start()  # after all that the memory is still there
    site.stop()
    assert site.weights == ALL_ONE


def test_without_a_place_to_remember_nothing_is_set(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.memory.parent.write_text("a file where the directory should be")
    site.start()
    assert site.weights == ALL_ONE
    assert f"{site.memory.parent}" in caplog.text


@pytest.mark.parametrize(
    "damaged",
    [
        "{",
        "[" * 100_000,
        '{"version": 1, "host": "h", "at_s": 1, "classes": [{"nodes": "n1", "site": 1e999, "ours": []}]}',
        '{"version": 1, "host": "h", "at_s": 1, "classes": [{"nodes": ["n1"], "site": 1, "ours": []}]}',
    ],
)
def test_a_memory_that_cannot_be_read_is_named_and_nothing_is_set(
    site: Site, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    site.memory.parent.mkdir()
    site.memory.write_text(damaged)
    site.start()
    assert site.weights == ALL_ONE
    assert f"{site.memory} cannot be read" in caplog.text


def test_memory_is_small_and_comes_back_as_it_was(tmp_path: Path) -> None:
    nodes = {f"n{number:04}": weightmemory.Known(1, frozenset(range(1, 10))) for number in range(1000)}
    nodes["x"] = weightmemory.Known(7)
    memory = weightmemory.Memory(nodes, "head", 17)
    path = tmp_path / "slurm-gpu" / "weights.json"
    weightmemory.write(path, memory, os.getuid())
    assert weightmemory.read(path) == memory
    assert path.stat().st_size < 300
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_act_that_slurm_gpudbd_does_not_take_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    clock, told = Clock(), list[Act]()
    away = True

    def send(acts: list[Act]) -> None:
        if away:
            raise DatabaseError("it is away")
        told.extend(acts)

    acts = Acts(clock, send)
    acts.add("done", "n1", "because", "1", "2")
    acts.close()
    acts.close()
    assert caplog.text.count("slurm-gpudbd could not be told what was done: it is away") == 1
    assert "slurm-gpudbd was not told of 1 acts" in caplog.text
    away = False
    acts.close()
    assert [act.subject for act in told] == ["n1"]


def test_a_hostlist_that_cannot_be_read_is_wrong_usage(site: Site) -> None:
    with pytest.raises(UsageError, match=r"slurm-gpu\.yaml: placement: nodes: hostlist"):
        site.start(nodes="n[1-")


def test_a_call_that_fails_leaves_the_rest_for_the_next_look(site: Site) -> None:
    own, calls = site.slurm.set_weight, 0

    def set_weight(nodes: Any, weight: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise SlurmError("scontrol update failed")
        own(nodes, weight)

    site.slurm.set_weight = set_weight  # type: ignore[method-assign]
    site.start()
    assert site.weights != PACKED
    site.turn()
    assert site.weights == PACKED


def test_cores_count_and_a_node_without_any_is_not_called_fuller_than_it_is(site: Site) -> None:
    # n1 has three GPUs free and no cores: it takes nothing, and is never whole.
    site.busy({"n1": 1})
    site.slurm.node_list = [
        dataclasses.replace(node, cpus_allocated=32) if node.name == "n1" else node
        for node in site.slurm.node_list
    ]
    site.start()
    assert site.weights == PACKED | {"n1": 2}
