"""`slurm-gpu doctor` compares the GPUs that Slurm has for a node with those of its driver."""

import dataclasses
from collections.abc import Sequence

import pytest

from slurm_gpu import __version__
from slurm_gpu.cli.doctor.checks.slurm import gres
from slurm_gpu.client.database_client import NodeReport
from slurm_gpu.errors import SlurmError
from slurm_gpu.wire import DeviceFacts
from tests.cli.installation import Installation, levels, worst
from tests.slurm.recorded import NOW_S


def line(files: str, kind: str = "a100", count: int = 1) -> str:
    """Return a line that Slurm 22.05 prints on standard error."""
    return (
        f"slurmd: Gres Name=gpu Type={kind} Count={count} Index=0 ID=7696487 File={files} "
        "(null) Flags=HAS_FILE,HAS_TYPE,ENV_NVML\n"
    )


def report(*minors: int, name: str | None = "NVIDIA A100-SXM4-40GB", cut: int | None = None) -> NodeReport:
    """Return the report of a node with GPUs of these minor numbers; the GPU `cut` has a MIG instance."""
    devices = [
        DeviceFacts(uuid=f"GPU-{minor}", node="n1", at_s=5, minor=minor, name=name) for minor in minors
    ]
    if cut is not None:
        devices.append(DeviceFacts(uuid="MIG-0", node="n1", at_s=5, minor=cut, parent=f"GPU-{cut}"))
    return NodeReport(node="n1", last_seen_s=NOW_S, version=__version__, devices=devices)


def compared(text: str, node_report: NodeReport) -> list[str]:
    """Return the level and message of each finding."""
    found = list(gres.compare("n1", gres.positions(text), node_report))
    assert all((one.remedy is None) == (one.level.value == "ok") for one in found)
    return [f"{one.level.value} {one.message}" for one in found]


def test_equal_counts_types_and_files_are_ok():
    text = line("/none/nvidia[0-2]", count=3) + line("/none/nvidia3")
    assert compared(text, report(0, 1, 2, 3)) == ["ok 4 GPUs of n1: each File= matches a GPU of the driver"]


def test_a_file_that_is_not_a_gpu_is_reported():
    assert compared(line("/none/nvidia0") + line("/none/nvidia7"), report(0)) == [
        "fail /none/nvidia7 on n1 is not a GPU of the driver: jobs get a GPU that does not exist"
    ]


def test_a_gpu_without_a_file_is_reported():
    assert compared(line("/none/nvidia0"), report(0, 1)) == [
        "warn n1 has GPUs without File= in gres.conf, which no job can use: minor 1 (GPU-1)"
    ]
    assert compared(line("/none/nvidia0"), report(0, 1, cut=1))[0].startswith("ok")


def test_a_gpu_that_is_counted_twice_is_reported():
    assert compared(line("/none/nvidia0") + line("/none/nvidia0"), report(0)) == [
        "fail gres.conf lists minor number 0 of n1 2 times, so jobs share that GPU"
    ]


@pytest.mark.parametrize(
    ("kind", "name", "is_reported"),
    [
        ("h100", "NVIDIA A100-SXM4-40GB", True),
        ("rtx6000", "Quadro RTX 6000", False),
        ("l40s", "NVIDIA L40S", False),
        ("l40s", "NVIDIA L40", True),
        ("big", "NVIDIA A100-SXM4-40GB", False),
        ("tesla_v100", "Tesla V100-SXM2-16GB", False),
        ("a100", "GRID", False),
        ("a100", None, False),
    ],
)
def test_a_type_with_the_name_of_another_model_is_reported(kind: str, name: str | None, is_reported: bool):
    found = compared(line("/none/nvidia0", kind) + line("/none/nvidia1", kind), report(0, 1, name=name))
    assert [text.startswith("warn") for text in found] == [is_reported]
    if is_reported:
        assert found == [f"warn Slurm has type {kind} for 2 GPUs of n1, but the driver reports {name}"]


def test_missing_files_are_reported():
    (text,) = compared("slurmd: Gres Name=gpu Type=a100 Count=4 ID=7696487\n", report(0, 1, 2, 3))
    assert text.startswith("warn slurmd -G shows no File= on n1")


def test_files_of_mig_instances_are_ok():
    text = line("/none/nvidia0") + line("/none/nvidia1,/none/nvidia-cap21,/none/nvidia-cap22", "1g.5gb")
    assert compared(text, report(0, 1, cut=1)) == ["ok 2 GPUs of n1: each File= matches a GPU of the driver"]


def test_slurmd_is_run_only_on_the_node_itself(installed: Installation):
    at = installed.at("n1")
    at.nodes = [dataclasses.replace(at.site.slurm.nodes()[0], name="n1", address="10.0.0.1")]
    assert levels(gres.agrees(at)) == ["skipped"]
    installed.database.reports = [report(0, 1)]
    installed.outputs["slurmd -G"] = line("/none/nvidia[0-1]", count=2)
    assert levels(gres.agrees(at)) == ["ok"]
    installed.outputs["slurmd -G"] = line("/none/nvidia[2-3]", count=2)
    assert "is not a GPU of the driver" in worst(gres.agrees(at)).message
    at.slurmd = _no_slurmd
    assert worst(gres.agrees(at)).message == "slurmd -G: no such file"
    assert levels(gres.agrees(at)) == ["warn"]
    at.slurmd = _fatal
    assert levels(gres.agrees(at)) == ["fail"]
    at.nodes = []
    assert levels(gres.agrees(at)) == ["skipped"]


def _fatal(command: Sequence[str]) -> str:
    raise SlurmError("slurmd -G: exit status 1: slurmd: fatal: Gres GPU plugin failed to load configuration")


def _no_slurmd(command: Sequence[str]) -> str:
    raise SlurmError(f"{' '.join(command)}: no such file")
