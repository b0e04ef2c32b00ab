"""`slurm-gpu doctor` distinguishes settings that Slurm has not read yet from those that slurm.conf lacks."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, Level
from slurm_gpu.cli.doctor.checks.slurm import memory, slurm_conf
from tests.cli.installation import Installation, worst

_UNSET = {
    "PrologFlags": "(null)",
    "AccountingStorageTRES": "cpu,mem",
    "AccountingStorageEnforce": "associations,limits,qos",
    "GresTypes": "(null)",
    "PriorityType": "priority/basic",
    "MaxJobCount": "1",
    "JobDefaults": "(null)",
    "DefMemPerNode": "UNLIMITED",
    "DefMemPerCPU": "0",
}
_PARTITIONS = (
    "PartitionName=gpu OverSubscribe=NO JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
)
_Check = Callable[[DoctorContext], Iterator[CheckResult]]


@pytest.fixture
def unset(installed: Installation) -> Installation:
    installed.conf |= _UNSET
    installed.outputs["scontrol --all --oneliner show partition"] = _PARTITIONS
    installed.outputs["squeue"] = "1\n2\n"
    return installed


def _with_conf(host: Installation, *lines: str) -> Path:
    path = Path(host.conf["SLURM_CONF"])
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("check", "lines", "remedy"),
    [
        (slurm_conf.prolog_flags, ["PrologFlags=Alloc"], "run scontrol reconfigure"),
        (slurm_conf.gpus_accounted, ["AccountingStorageTRES=gres/gpu,gres/shard"], "restart slurmctld"),
        (slurm_conf.gres_types, ["GresTypes=gpu"], "restart slurmctld and each slurmd"),
        (slurm_conf.priorities, ["prioritytype=priority/multifactor"], "restart slurmctld"),
        (slurm_conf.room_for_jobs, ["MaxJobCount=1000"], "restart slurmctld"),
        (memory.defaults, ["DefMemPerGPU=25000", "DefMemPerCPU=3125"], "run scontrol reconfigure"),
        (
            memory.defaults,
            ["PartitionName=gpu DefMemPerGPU=25000 DefMemPerCPU=3125"],
            "run scontrol reconfigure",
        ),
        (
            memory.defaults,
            ["PartitionName=DEFAULT DefMemPerGPU=25000 DefMemPerCPU=3125", "PartitionName=gpu Nodes=ALL"],
            "run scontrol reconfigure",
        ),
    ],
)
def test_a_setting_that_slurm_has_not_read_is_named(
    unset: Installation, check: _Check, lines: list[str], remedy: str
):
    before = worst(check(unset.at()))
    assert before.level in (Level.WARN, Level.FAIL)
    assert str(before.remedy).startswith(("set ", "add "))
    conf = _with_conf(unset, "ClusterName=neuron", *lines)
    named = [line for line in lines if "Nodes=" not in line]
    after = worst(check(unset.at()))
    assert after.level is before.level
    shown = " and ".join(f"{conf}:{number} has {line}" for number, line in enumerate(named, 2))
    shown = shown.replace("prioritytype", "PriorityType")
    assert after.message == f"{shown}, which Slurm has not read yet; until then, {before.message}"
    assert after.remedy == remedy


def test_a_setting_that_slurm_conf_also_lacks_must_still_be_set(unset: Installation):
    without = worst(slurm_conf.prolog_flags(unset.at()))
    _with_conf(unset, "PrologFlags=X11")
    finding = worst(slurm_conf.prolog_flags(unset.at()))
    assert finding.message == without.message
    assert str(finding.remedy).startswith("set PrologFlags=X11,Alloc in slurm.conf")
    _with_conf(unset, "DefMemPerGPU=25000")
    (finding,) = memory.defaults(unset.at())
    assert finding.message.startswith("partition gpu: DefMemPerGPU is set without DefMemPerCPU")
    assert str(finding.remedy).startswith("set DefMemPerCPU=3125")


def test_lines_that_slurm_has_read_are_not_named(unset: Installation):
    unset.outputs["scontrol --all --oneliner show partition"] += (
        "PartitionName=big OverSubscribe=NO JobDefaults=DefMemPerGPU=1000 DefMemPerCPU=10 "
        "MaxMemPerNode=UNLIMITED\n"
    )
    conf = _with_conf(
        unset,
        "PartitionName=big DefMemPerGPU=1000 DefMemPerCPU=10",
        "PartitionName=gpu DefMemPerGPU=25000 DefMemPerCPU=3125",
    )
    (finding,) = memory.defaults(unset.at())
    assert finding.message.startswith(
        f"{conf}:2 has PartitionName=gpu DefMemPerGPU=25000 DefMemPerCPU=3125, which Slurm has not read yet"
    )


def test_on_another_host_the_file_of_slurmctld_may_differ(unset: Installation):
    _with_conf(unset, "PrologFlags=Alloc")
    at = dataclasses.replace(unset.at(), host="n1")
    assert worst(slurm_conf.prolog_flags(at)).remedy == (
        "make sure that slurmctld's slurm.conf has the same values, then run scontrol reconfigure"
    )
