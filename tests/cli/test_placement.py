"""`slurm-gpu placement` prints and restores weights, and doctor checks them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.finding import Level
from slurm_gpu.cli.doctor.checks.slurm import weights
from slurm_gpu.controller.placement import original_weights as weightmemory
from slurm_gpu.controller.placement import table as placementtable
from slurm_gpu.controller.placement.original_weights import OriginalWeights, RecordedWeights
from slurm_gpu.controller.placement.table import LastAction, MixLine, NodeLine, PlacementTable
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings
from slurm_gpu.slurm.commands import CommandClient
from tests.cli.conftest import CommandLine
from tests.cli.installation import Installation, levels, worst
from tests.slurm.recorded import NOW_S, RecordedSlurm

OURS = frozenset({1, 2, 3, 4, 5})
LINE = NodeLine(
    "n1",
    "zone1",
    "mixed",
    4,
    1.25,
    3,
    3,
    1,
    ours=True,
    whole=False,
    by_hand=False,
    useful=2.5,
    strands=-0.125,
)
TABLE = PlacementTable(
    as_of_s=NOW_S - 4,
    host="head",
    mode="enforce",
    in_charge=True,
    cycle_s=10.0,
    nodes=(
        LINE,
        dataclasses.replace(LINE, name="n2", weight=500, target=None, by_hand=True, zone=None),
        NodeLine("n3", "zone1", "down", 4, 0, 1, None, 1, ours=False, whole=False, by_hand=False),
        NodeLine(
            "n4", "zone1", "idle", 4, 0, 5, 5, 1, ours=True, whole=True, by_hand=False, useful=4, strands=0
        ),
    ),
    last_action=LastAction(NOW_S - 60, "weights set", 2, 1, 0.021),
    mix=(MixLine(1, 0, 8, 65536, "", 0.62), MixLine(0, 250, 1, 0, "a100", 0.38)),
)


class Slurm(CommandClient):
    """The recorded Slurm (n1, n2 and n3 have GPUs, all Weights are 1) with weights that can be set."""

    def __init__(self, root: Path, given: dict[str, int] | None = None) -> None:
        super().__init__(RecordedSlurm(), {})
        self.given = {} if given is None else given
        self.conf = root / "slurm.conf"
        self.conf.write_text("NodeName=n[1-4]\n")
        self.state = root

    def settings(self) -> SlurmSettings:
        settings = super().settings()
        raw = {**settings.raw, "SlurmctldHost[0]": "head", "StateSaveLocation": str(self.state)}
        return dataclasses.replace(settings, raw=raw, conf_path=str(self.conf), slurm_user_uid=os.getuid())

    def nodes(self) -> Sequence[SlurmNode]:
        return [dataclasses.replace(node, weight=self.given.get(node.name, 1)) for node in super().nodes()]

    def set_weight(self, nodes: Iterable[str], weight: int) -> None:
        self.given |= dict.fromkeys(nodes, weight)


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


@pytest.fixture
def command(
    slurm_gpu: CommandLine, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    monkeypatch.setenv("SLURM_GPU_RUN_DIR", str(tmp_path))
    slurm_gpu.site.connect_slurm = lambda: slurm
    return slurm_gpu


def remember(slurm: Slurm, **nodes: RecordedWeights) -> Path:
    path = weightmemory.path_of(slurm.settings())
    weightmemory.write(path, OriginalWeights(nodes, "head", NOW_S), os.getuid())
    return path


def test_the_table_of_slurm_gpuctld_is_shown(command: CommandLine, tmp_path: Path) -> None:
    placementtable.write(tmp_path / "placement.json", TABLE)
    assert command("placement", "status") == 0
    assert command.rows()[0][:2] == ["Mode", "enforce;"]
    assert "slurm-gpuctld on head computed the weights 4s ago\n" in command.out
    assert "Last action: weights set on 2 nodes in 1 call, 0.02 s, " in command.out
    assert "Whole nodes free: 1 of 4\n" in command.out
    assert "Recent jobs: 62% 1 GPU, 8 CPUs, 64.0G; 38% 0.25 of a GPU a100, 1 CPU\n" in command.out
    assert command.rows()[-4:] == [
        ["n1", "zone1", "mixed", "4", "1.25", "2.75", "2.50", "-0.12", "3", "3", "1"],
        ["n2", "–", "mixed", "4", "1.25", "2.75", "2.50", "-0.12", "500", "by", "hand", "1"],
        ["n3", "zone1", "down", "4", "0", "4", "–", "–", "1", "–", "1"],
        ["n4", "zone1", "idle", "4", "0", "4", "4.00", "0.00", "5", "5", "1"],
    ]
    assert "Weight of n2 was set by hand, and slurm-gpuctld does not change it" in command.err


def test_json_has_the_same_and_the_age(command: CommandLine, tmp_path: Path) -> None:
    placementtable.write(tmp_path / "placement.json", TABLE)
    command("placement", "status", "--json")
    found = json.loads(command.out)
    assert (found["from"], found["age_s"], found["whole_free"]) == ("slurm-gpuctld", 4, 1)
    assert found["by_hand"] == ["n2"]
    assert found["nodes"][0]["busy"] == 1.25
    assert (found["nodes"][0]["useful"], found["nodes"][2]["useful"]) == (2.5, None)
    assert found["mix"][1] == {
        "gpus": 0,
        "share_mgpu": 250,
        "cpus": 1,
        "memory_mib": 0,
        "gpu_type": "a100",
        "popularity": 0.38,
    }


def test_a_table_of_the_previous_release_can_be_read(tmp_path: Path) -> None:
    plain = dataclasses.replace(TABLE, mix=()).to_json()
    del plain["mix"]
    for node in plain["nodes"]:
        del node["useful"], node["strands"]
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(plain))
    found = placementtable.read(path)
    assert found is not None
    assert (found.mix, found.nodes[0].useful) == ((), None)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("{mode: enforce}", ""),
        ("{mode: advise}", "The site file has mode: advise: restart slurm-gpuctld to apply it\n"),
        ("{mode: on}", "The site file is invalid, so slurm-gpuctld cannot start again: "),
    ],
)
def test_a_site_file_changed_since_the_start_is_reported(
    command: CommandLine, tmp_path: Path, placement: str, message: str
) -> None:
    placementtable.write(tmp_path / "placement.json", dataclasses.replace(TABLE, nodes=TABLE.nodes[:1]))
    command.config.write_text(f"cluster: neuron\nplacement: {placement}\n")
    assert command("placement", "status") == 0
    assert command.err.startswith(message)
    assert bool(command.err) == bool(message)


def test_an_old_table_is_reported(command: CommandLine, tmp_path: Path) -> None:
    placementtable.write(tmp_path / "placement.json", dataclasses.replace(TABLE, as_of_s=NOW_S - 40))
    command("placement", "status")
    assert (
        "computed the weights 40s ago, which is too long ago: check that slurm-gpuctld is running"
        in command.out
    )


def test_without_slurm_gpuctld_weights_are_computed_and_not_set(command: CommandLine, slurm: Slurm) -> None:
    assert command("placement", "status", "--json") == 0
    found = json.loads(command.out)
    assert (found["from"], found["mode"], found["last_action"]) == ("now", "observe", None)
    # n1 has no free GPU, on n3 only shards are in use, and n4 has no GPUs.
    targets = {line["name"]: line["target"] for line in found["nodes"]}
    assert set(targets) == {"n1", "n2", "n3"}
    assert targets["n1"] < targets["n3"]
    assert slurm.given == {}


def test_release_restores_weights_left_by_a_killed_slurm_gpuctld(command: CommandLine, slurm: Slurm) -> None:
    path = remember(
        slurm, n1=RecordedWeights(1, OURS), n2=RecordedWeights(1, OURS), n3=RecordedWeights(1, OURS)
    )
    slurm.given = {"n1": 4, "n2": 1, "n3": 900}
    assert command("placement", "release") == 0
    assert command.out == "The site's own Weight was restored on 1 node\n"
    assert slurm.given == {"n1": 1, "n2": 1, "n3": 900}
    assert not path.exists()
    assert command("placement", "release") == 0
    assert command.out == "No node has a Weight that slurm-gpuctld set\n"


def test_release_is_refused_while_slurm_gpuctld_runs(command: CommandLine, tmp_path: Path) -> None:
    placementtable.write(tmp_path / "placement.json", TABLE)
    assert command("placement", "release") == 2
    assert "slurm-gpuctld runs on this host and would set the weights again: stop it" in command.err


class Host:
    """A controller on which doctor checks weights."""

    def __init__(self, installed: Installation, slurm: Slurm, mode: str) -> None:
        installed.site_file.write_text(f"cluster: neuron\nplacement: {{mode: {mode}}}\n")
        self.installed, self.at = installed, installed.at()
        self.at.controller_run = installed.root
        self.at.site.connect_slurm = lambda: slurm

    def write(self, **changes: object) -> None:
        """Write the placement table of a running slurm-gpuctld."""
        self.installed.process(815, "python3", "/usr/sbin/slurm-gpuctld")
        placementtable.write(
            self.at.controller_run / "placement.json",
            dataclasses.replace(TABLE, **changes),  # type: ignore[arg-type]
        )


def test_doctor_accepts_unset_weights(installed: Installation, slurm: Slurm) -> None:
    assert levels(weights.weights(Host(installed, slurm, "observe").at)) == ["ok"]
    assert levels(weights.weights(installed.at(host="login"))) == ["skipped"]


def test_doctor_accepts_weights_of_a_running_slurm_gpuctld(installed: Installation, slurm: Slurm) -> None:
    remember(slurm, n1=RecordedWeights(1, OURS), n2=RecordedWeights(1, OURS), n3=RecordedWeights(1, OURS))
    slurm.given = {"n1": 4, "n2": 1, "n3": 2}
    host = Host(installed, slurm, "enforce")
    host.write()
    assert levels(weights.weights(host.at)) == ["ok"]
    host.write(in_charge=False)
    assert "slurmctld on another host is in charge" in worst(weights.weights(host.at)).message


def test_doctor_names_weights_set_by_hand(installed: Installation, slurm: Slurm) -> None:
    remember(slurm, n1=RecordedWeights(1, OURS), n2=RecordedWeights(1, OURS), n3=RecordedWeights(1, OURS))
    slurm.given = {"n1": 400, "n2": 400, "n3": 2}
    host = Host(installed, slurm, "enforce")
    host.write()
    (finding,) = weights.weights(host.at)
    assert finding.level is Level.WARN
    assert finding.message == (
        "Weight 400 of n[1-2] was set by hand (original: 1); slurm-gpuctld does not change it"
    )
    assert finding.remedy is not None
    assert finding.remedy.startswith(
        "to let slurm-gpuctld manage it, run scontrol update NodeName=n[1-2] Weight=1;"
    )


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_doctor_reports_weights_without_a_slurm_gpuctld(
    installed: Installation, slurm: Slurm, mode: str
) -> None:
    remember(slurm, n1=RecordedWeights(1, OURS))
    slurm.given = {"n1": 4}
    finding = worst(weights.weights(Host(installed, slurm, mode).at))
    assert finding.level is Level.FAIL
    assert "slurm-gpu placement release" in str(finding.remedy)
    assert "1 node still has a Weight that slurm-gpuctld set" in finding.message


def test_doctor_reports_a_slurm_gpuctld_that_was_just_killed(installed: Installation, slurm: Slurm) -> None:
    remember(slurm, n1=RecordedWeights(1, OURS))
    slurm.given = {"n1": 4}
    host = Host(installed, slurm, "enforce")
    host.write()
    assert levels(weights.weights(host.at)) == ["ok"]
    shutil.rmtree(host.at.proc / "815")
    assert (
        "slurm-gpuctld does not renew its table on this host (it is 4 s old)"
        in worst(weights.weights(host.at)).message
    )


def test_doctor_reports_mode_enforce_without_a_slurm_gpuctld(installed: Installation, slurm: Slurm) -> None:
    finding = worst(weights.weights(Host(installed, slurm, "enforce").at))
    assert (finding.level, finding.remedy) == (
        Level.FAIL,
        "run systemctl start slurm-gpuctld; see journalctl -u slurm-gpuctld",
    )
