"""`slurm-gpu doctor` on the memory that jobs get which do not say how much they need."""

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
    """Nodes n1 to n3 with 32 CPUs, 100000 MiB and 4 GPUs each are in gpu; n4, without GPUs, is in cpu."""
    installed.conf |= NOTHING
    _have(installed, gpu="", cpu="")
    return installed


def _have(cluster: Installation, **partitions: str) -> None:
    text = "".join(_partition(name, more) for name, more in partitions.items())
    cluster.said["scontrol --all --oneliner show partition"] = text


def _found(cluster: Installation, conf: Mapping[str, str]) -> list[CheckResult]:
    cluster.conf |= conf
    return list(memory.defaults(cluster.at()))


def test_both_defaults_are_fine(cluster: Installation) -> None:
    (finding,) = _found(cluster, PER_GPU | PER_CPU)
    assert finding.level is Level.OK


def test_without_defaults_what_to_write_is_each_gpus_and_each_cpus_part(cluster: Installation) -> None:
    (finding,) = _found(cluster, {})
    assert finding.level is Level.WARN
    assert finding.message.startswith(
        "partition gpu: no DefMemPerGPU and no DefMemPerCPU: a job without --mem"
    )
    # scontrol shows it under JobDefaults, a key at which every program that reads slurm.conf stops.
    assert finding.remedy == (
        "DefMemPerGPU=25000 and DefMemPerCPU=3125 (or less) in slurm.conf, a line of its own each; "
        "scontrol reconfigure"
    )


def test_a_default_for_each_gpu_is_none_for_jobs_without_gpus(cluster: Installation) -> None:
    (finding,) = _found(cluster, PER_GPU)
    assert finding.message.startswith("partition gpu: DefMemPerGPU without DefMemPerCPU")
    assert str(finding.remedy).startswith("DefMemPerCPU=3125 (or less) in slurm.conf, a line")


def test_a_default_for_each_cpu_is_one_for_jobs_with_gpus(cluster: Installation) -> None:
    (finding,) = _found(cluster, PER_CPU)
    assert finding.level is Level.OK


def test_a_partitions_own_defaults_do_as_well_as_slurm_confs(cluster: Installation) -> None:
    _have(cluster, gpu="JobDefaults=DefMemPerGPU=2000 DefMemPerCPU=1000")
    (finding,) = _found(cluster, {})
    assert finding.level is Level.OK


def test_of_several_partitions_those_without_are_named(cluster: Installation) -> None:
    _have(cluster, gpu="DefMemPerCPU=1000", big="")
    at = cluster.at()
    at.nodes = [dataclasses.replace(node, partitions=["gpu", "big"]) for node in at.nodes]
    (finding,) = memory.defaults(at)
    assert finding.message.startswith("partition big: no DefMemPerGPU and no DefMemPerCPU")
    assert "on the line of PartitionName=big;" in str(finding.remedy)


def test_where_jobs_have_their_nodes_to_themselves_memory_is_nobody_elses(cluster: Installation) -> None:
    _have(cluster, gpu="OverSubscribe=EXCLUSIVE")
    (finding,) = _found(cluster, {})
    assert finding.level is Level.OK


def test_where_slurm_hands_out_no_memory_no_default_is_needed(cluster: Installation) -> None:
    (finding,) = _found(cluster, {"SelectTypeParameters": "CR_CORE,CR_CORE_DEFAULT_DIST_BLOCK"})
    assert finding.level is Level.OK


@pytest.mark.parametrize(
    ("conf", "own", "said"),
    [
        (
            {"JobDefaults": "DefMemPerGPU=40000"},
            "DefMemPerCPU=1",
            "DefMemPerGPU=40000, and n1 has 100000 MiB",
        ),
        (PER_GPU, "DefMemPerCPU=1 JobDefaults=DefMemPerGPU=40000", "DefMemPerGPU=40000, and n1"),
        ({"DefMemPerNode": "40000"}, "", "DefMemPerNode=40000, and n1"),
        (PER_CPU, "DefMemPerNode=40000", "DefMemPerNode=40000, and n1"),
    ],
)
def test_a_default_that_is_more_than_each_gpus_part_is_too_much(
    cluster: Installation, conf: dict[str, str], own: str, said: str
) -> None:
    _have(cluster, gpu=own)
    (finding,) = _found(cluster, conf)
    assert finding.message.startswith(f"partition gpu: {said}")
    assert finding.message.endswith("find room on 2 of them")
    assert str(finding.remedy).startswith("DefMemPerGPU=25000 (or less) in slurm.conf, on the line of")
