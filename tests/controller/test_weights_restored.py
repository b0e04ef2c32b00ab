"""Original weights are restored after any failure of slurm-gpuctld, slurmctld or the record on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.placement import original_weights as weightmemory
from slurm_gpu.controller.placement.weights import CYCLE_S
from slurm_gpu.slurm.client import SlurmctldHost

from .weight_site import ALL_ONE, CONF, PACKED, Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


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


def test_a_stop_puts_the_sites_own_back(site: Site) -> None:
    site.start()
    acts = site.stop()
    assert site.weights == ALL_ONE
    assert not site.memory.exists()
    assert not (site.directory / "placement.json").exists()
    assert acts == ["node weights taken over", "node weights restored"]
    assert (site.reported[0].old, site.reported[0].new, site.reported[0].subject) == (
        "1 of n[1-4]",
        "2 to 6",
        "n[1-4]",
    )


def test_after_a_kill_at_any_call_the_next_process_restores_weights(tmp_path: Path) -> None:
    """The next process finds Slurm and the disk in the state at the time of the kill."""

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
    site.start("observe")  # the first process was killed
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


def test_a_weight_added_to_slurm_conf_is_the_site_s_own(site: Site) -> None:
    site.start()
    site.conf.write_text(CONF.replace("n[1-4]", "n[1-4] Weight=300"))
    site.slurm.forget_weights({"n1": 300, "n2": 300, "n3": 300, "n4": 300})
    site.run_cycle()
    assert site.table().by_hand == []
    assert site.weights == {"n2": 301, "n3": 302, "n1": 303, "n4": 304, "c1": 1}
    site.stop()
    assert site.weights == {"n1": 300, "n2": 300, "n3": 300, "n4": 300, "c1": 1}


def test_the_original_weight_of_dynamic_nodes_is_the_first_one_seen(site: Site) -> None:
    site.conf.write_text("NodeName=c1\n")
    site.slurm.forget_weights({"n3": 7})
    site.start()
    assert site.weights["n3"] == 9
    site.stop()
    assert site.weights == ALL_ONE | {"n3": 7}


def test_a_node_that_is_managed_no_more_gets_its_own_back(site: Site) -> None:
    site.start()
    site.start(nodes="n[1-2]")  # the first process was killed, and the file was changed
    assert (site.weights["n3"], site.weights["n4"]) == (1, 1)
    # n3 and n4 are now unmanaged nodes with equal weights, and come first, like nodes without GPUs.
    assert (site.weights["n1"], site.weights["n2"]) == (5, 3)
    site.stop()
    assert site.weights == ALL_ONE


def test_with_a_backup_only_the_host_whose_slurmctld_is_in_charge_acts(site: Site) -> None:
    site.slurm.hosts = [SlurmctldHost("head", is_up=True), SlurmctldHost("spare", is_up=True)]
    head = site.start(host="head")
    spare = site.start(host="spare")
    calls = len(site.slurm.set_calls)
    assert site.weights == PACKED
    assert not site.table().in_charge
    # The host `head` fails, and slurmctld 22.05 on `spare` starts with the original weights.
    site.slurm.hosts[0] = SlurmctldHost("head", is_up=False)
    site.slurm.forget_weights()
    site.clock.advance(CYCLE_S)
    spare.run(QueueView())
    assert site.weights == PACKED
    assert len(site.slurm.set_calls) > calls
    # head is up again, and the slurm-gpuctld on spare may exit without effect.
    site.slurm.hosts[0] = SlurmctldHost("head", is_up=True)
    site.clock.advance(CYCLE_S)
    head.run(QueueView())
    site.clock.advance(CYCLE_S)
    spare.run(QueueView())
    spare.stop()
    assert site.weights == PACKED
    head.stop()
    assert site.weights == ALL_ONE


def test_an_unreachable_slurmctld_is_logged_once_and_a_stop_does_not_wait(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.start()
    site.slurm.down = True
    site.run_cycle()
    site.run_cycle()
    assert caplog.text.count("node weights could not be changed: Unable to contact") == 1
    site.slurm.asked.clear()
    site.controller.stop()
    assert site.slurm.asked == ["ping"]
    assert "run `slurm-gpu placement release`" in caplog.text
    site.slurm.down = False
    site.start()  # the record of original weights still exists
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
    nodes = {
        f"n{number:04}": weightmemory.RecordedWeights(1, frozenset(range(1, 10))) for number in range(1000)
    }
    nodes["x"] = weightmemory.RecordedWeights(7)
    memory = weightmemory.OriginalWeights(nodes, "head", 17)
    path = tmp_path / "slurm-gpu" / "weights.json"
    weightmemory.write(path, memory, os.getuid())
    assert weightmemory.read(path) == memory
    assert path.stat().st_size < 300
    assert path.stat().st_mode & 0o777 == 0o644
