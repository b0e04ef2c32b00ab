"""pyslurm is used only with a matching Slurm; if it fails, Slurm's commands are used instead.

tests/lab/test_slurm_client.py tests the real pyslurm if it is installed.
"""

import importlib.machinery
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from slurm_gpu.slurm.commands import CommandClient
from slurm_gpu.slurm.connect import connect
from slurm_gpu.slurm.pyslurm_backend import PyslurmClient
from tests.slurm.recorded import RecordedSlurm


def _commands(version: str = "22.05.8") -> CommandClient:
    recorded = RecordedSlurm()

    def run(argv, environ, timeout_s):
        if argv == ("scontrol", "--version"):
            return f"slurm-wlm {version}\n"
        return recorded(argv, environ, timeout_s)

    return CommandClient(run, {})


def _install(monkeypatch: pytest.MonkeyPatch, **contents: Any) -> None:
    module = ModuleType("pyslurm")
    module.__spec__ = importlib.machinery.ModuleSpec("pyslurm", None)
    module.__dict__.update({"RPCError": RuntimeError, **contents})
    monkeypatch.setitem(sys.modules, "pyslurm", module)


def _loads(*things: Any) -> SimpleNamespace:
    return SimpleNamespace(load=lambda: dict(enumerate(things)))


_NODE = SimpleNamespace(
    name="n1",
    address="10.0.0.1",
    state="ALLOCATED+DRAIN",
    reason="disk",
    total_cpus=32,
    allocated_cpus=3,
    real_memory=1000,
    allocated_memory=0,
    configured_gres={"gpu:a100": 4, "gpu": 2, "shard:a100": 16},
    active_features=["zone1"],
    partitions=["gpu"],
    weight=7,
)


def _job(state: str, gres: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(state=state, get_resource_layout_per_node=lambda: {"n1": {"gres": gres}})


def test_without_pyslurm_the_commands_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert type(connect()) is CommandClient


@pytest.mark.parametrize(
    ("own", "slurm", "fits"),
    [
        ("22.5.3", "22.05.8", True),
        ("23.11.0", "23.11.10", True),
        ("25.11.2", "25.05.3", False),
        ("24.5.1", "22.05.8", False),
        ("", "22.05.8", False),
    ],
)
def test_pyslurm_is_used_with_its_own_slurm_only(
    monkeypatch: pytest.MonkeyPatch, own: str, slurm: str, fits: bool
):
    _install(monkeypatch, __version__=own)
    assert (PyslurmClient.if_usable(_commands(slurm)) is not None) == fits


def test_gpus_of_running_jobs_are_allocated(monkeypatch: pytest.MonkeyPatch):
    jobs = (
        _job("RUNNING", {"gpu:a100": {"count": "2", "indexes": "0-1"}}),
        _job("SUSPENDED", {"shard": {"count": "3", "indexes": "2"}, "gpu": {"count": "1", "indexes": "4"}}),
        _job("COMPLETED", {"gpu:a100": {"count": "1", "indexes": "3"}}),
    )
    _install(monkeypatch, __version__="22.5.3", Nodes=_loads(_NODE), Jobs=_loads(*jobs))
    client = PyslurmClient.if_usable(_commands())
    assert client is not None
    (node,) = client.nodes()
    assert (node.gpus, node.gpus_allocated) == ({"a100": 4, "": 2}, {"a100": 2, "": 1})
    assert (node.shards, node.shards_allocated) == (16, 3)
    assert (node.state, node.reason) == ("mixed+drain", "disk")


def test_the_commands_replace_a_pyslurm_with_another_interface(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    _install(monkeypatch, __version__="22.5.3", Nodes=_loads(SimpleNamespace(name="n1")), Jobs=_loads())
    client = PyslurmClient.if_usable(_commands())
    assert client is not None
    for _ in range(2):
        assert [node.name for node in client.nodes()] == ["n1", "n2", "n3", "n4"]
    assert len(caplog.records) == 1
