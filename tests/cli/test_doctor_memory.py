"""`slurm-gpu doctor` checks the default memory of jobs that request none."""

import dataclasses
from collections.abc import Mapping

import pytest

from slurm_gpu.cli.doctor.checks.finding import CheckResult, Level
from slurm_gpu.cli.doctor.checks.slurm import memory
from tests.cli.installation import Installation

NOTHING = {"JobDefaults": "(null)", "DefMemPerCPU": "0", "DefMemPerNode": "UNLIMITED"}
PER_GPU, PER_CPU = {"JobDefaults": "DefCpuPerGPU=8,DefMemPerGPU=4096"}, {"DefMemPerCPU": "512"}


def _partition(name: str, more: str = "") -> str:
    fields = f"OverSubscribe=NO JobDefaults=(null) DefMemPerNode=UNLIMITED {more}"
    return f"PartitionName={name} {fields} MaxMemPerNode=UNLIMITED\n"


@pytest.fixture
def cluster(installed: Installation) -> Installation:
    """Return nodes n1 to n3 with 32 CPUs, 100000 MiB and 4 GPUs each in gpu, and n4 without GPUs in cpu."""
    installed.conf |= NOTHING
    _set_partitions(installed, gpu="", cpu="")
    return installed


def _set_partitions(cluster: Installation, **partitions: str) -> None:
    text = "".join(_partition(name, more) for name, more in partitions.items())
    cluster.outputs["scontrol --all --oneliner show partition"] = text


def _found(cluster: Installation, conf: Mapping[str, str]) -> list[CheckResult]:
    cluster.conf |= conf
    return list(memory.defaults(cluster.at()))


def test_both_defaults_are_ok(cluster: Installation) -> None:
    (finding,) = _found(cluster, PER_GPU | PER_CPU)
    assert finding.level is Level.OK


def test_the_proposed_defaults_are_equal_shares_per_gpu_and_cpu(cluster: Installation) -> None:
    (finding,) = _found(cluster, {})
    assert finding.level is Level.WARN
    assert finding.message.startswith(
        "partition gpu: neither DefMemPerGPU nor DefMemPerCPU is set, so a job without --mem"
    )
    # scontrol prints DefMemPerGPU as JobDefaults, but programs fail on a slurm.conf with that key.
    assert finding.remedy == (
        "set DefMemPerGPU=25000 and DefMemPerCPU=3125 (or less) in slurm.conf, each on its own line; "
        "then run "
        "scontrol reconfigure"
    )


def test_a_default_per_gpu_does_not_apply_to_jobs_without_gpus(cluster: Installation) -> None:
    (finding,) = _found(cluster, PER_GPU)
    assert finding.message.startswith("partition gpu: DefMemPerGPU is set without DefMemPerCPU")
    assert str(finding.remedy).startswith("set DefMemPerCPU=3125 (or less) in slurm.conf, each")


def test_a_default_per_cpu_also_applies_to_jobs_with_gpus(cluster: Installation) -> None:
    (finding,) = _found(cluster, PER_CPU)
    assert finding.level is Level.OK


def test_defaults_of_a_partition_are_ok(cluster: Installation) -> None:
    _set_partitions(cluster, gpu="JobDefaults=DefMemPerGPU=2000 DefMemPerCPU=1000")
    (finding,) = _found(cluster, {})
    assert finding.level is Level.OK


def test_partitions_without_defaults_are_named(cluster: Installation) -> None:
    _set_partitions(cluster, gpu="DefMemPerCPU=1000", big="")
    at = cluster.at()
    at.nodes = [dataclasses.replace(node, partitions=["gpu", "big"]) for node in at.nodes]
    (finding,) = memory.defaults(at)
    assert finding.message.startswith("partition big: neither DefMemPerGPU nor DefMemPerCPU is set")
    assert "on the line of PartitionName=big;" in str(finding.remedy)


def test_exclusive_partitions_need_no_defaults(cluster: Installation) -> None:
    _set_partitions(cluster, gpu="OverSubscribe=EXCLUSIVE")
    (finding,) = _found(cluster, {})
    assert finding.level is Level.OK


def test_without_memory_as_a_resource_no_default_is_needed(cluster: Installation) -> None:
    (finding,) = _found(cluster, {"SelectTypeParameters": "CR_CORE,CR_CORE_DEFAULT_DIST_BLOCK"})
    assert finding.level is Level.OK


@pytest.mark.parametrize(
    ("conf", "own", "message"),
    [
        (
            {"JobDefaults": "DefMemPerGPU=40000"},
            "DefMemPerCPU=1",
            "DefMemPerGPU=40000, but n1 has 100000 MiB",
        ),
        (PER_GPU, "DefMemPerCPU=1 JobDefaults=DefMemPerGPU=40000", "DefMemPerGPU=40000, but n1"),
        ({"DefMemPerNode": "40000"}, "", "DefMemPerNode=40000, but n1"),
        (PER_CPU, "DefMemPerNode=40000", "DefMemPerNode=40000, but n1"),
    ],
)
def test_a_default_above_the_share_of_a_gpu_is_reported(
    cluster: Installation, conf: dict[str, str], own: str, message: str
) -> None:
    _set_partitions(cluster, gpu=own)
    (finding,) = _found(cluster, conf)
    assert finding.message.startswith(f"partition gpu has {message}")
    assert finding.message.endswith("can use only 2 of them")
    assert str(finding.remedy).startswith("set DefMemPerGPU=25000 (or less) in slurm.conf, on the line")
