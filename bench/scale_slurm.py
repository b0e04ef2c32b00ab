"""Replacements for Slurm's commands that print the state of a large, full cluster.

Each node has eight GPUs and one job on all of them. The output is that of Slurm 22.05 except for names, so
that slurm-gpudbd reads as much as on a real cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.slurm import sacct

CLUSTER, USER, UID = "bench", "alice", 1001
GPUS = 8
_RECORDED = Path(__file__).parent.parent / "tests" / "slurm" / "data" / "22.05"
_NODE = """NodeName={name} Arch=x86_64 CoresPerSocket=32
   CPUAlloc=64 CPUEfctv=64 CPUTot=64 CPULoad=31.03
   AvailableFeatures=zone1,a100
   ActiveFeatures=zone1,a100
   Gres=gpu:a100:8
   GresDrain=N/A
   GresUsed=gpu:a100:8(IDX:0-7)
   NodeAddr={address} NodeHostName={name} Port=6818 Version=22.05.8
   OS=Linux 6.1.0 #1 SMP
   RealMemory=1000000 AllocMem=900000 FreeMem=233230 Sockets=2 Boards=1
   State=ALLOCATED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   BootTime=1795261025 SlurmdStartTime=1795262531
   LastBusyTime=1795263260
   CfgTRES=cpu=64,mem=1000000M,billing=64,gres/gpu=8,gres/gpu:a100=8
   AllocTRES=cpu=64,mem=900000M,gres/gpu=8,gres/gpu:a100=8
   CapWatts=n/a
   CurrentWatts=0 AveWatts=0
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s

"""
_JOB = """JobId={job_id} JobName=train
   UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A
   Priority=1 Nice=0 Account=vision QOS=normal
   JobState={state} Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime=00:01:09 TimeLimit=7-00:00:00 TimeMin=N/A
   SubmitTime={submit_s} EligibleTime={submit_s}
   AccrueTime={submit_s}
   StartTime={start_s} EndTime={end_s} Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval={start_s} Scheduler=Main
   Partition=gpu AllocNode:Sid=login1:1214
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList={node}
   BatchHost={node}
   NumNodes=1 NumCPUs=64 NumTasks=1 CPUs/Task=64 ReqB:S:C:T=0:0:*:*
   TRES=cpu=64,mem=900000M,node=1,billing=64,gres/gpu=8,gres/gpu:a100=8
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:a100:8
     Nodes={node} CPU_IDs=0-63 Mem=900000 GRES={gres}
   MinCPUsNode=64 MinMemoryNode=900000M MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=/home/alice/train.sh
   WorkDir=/home/alice
   AdminComment=slurm-gpu/1 t=abcdef012345 r=grad-share
   StdErr=/home/alice/slurm-{job_id}.out
   StdIn=/dev/null
   StdOut=/home/alice/slurm-{job_id}.out
   Power=
   TresPerNode=gres:gpu:8


"""
_TRES = "billing=64,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=900000M,node=1"
# The requested delimiter, which no job name contains.
_MARK = """mark=$(printf %s "$*" | grep -o '<[0-9a-f]*>' | head -n 1)"""
_PROGRAMS = {
    "scontrol": """case "$*" in
--version) echo slurm 22.05.8;;
ping) echo 'Slurmctld(primary) at head is UP';;
"show config") cat config;;
*"show node") cat nodes;;
*"show job") cat jobs;;
*"show job "*) for job; do :; done; sed -n "/^JobId=$job /,/^$/p" jobs;;
esac""",
    "squeue": f"""{_MARK}
sed "s/<MARK>/$mark/g" labels""",
    # All jobs are current: earlier periods and other jobs have no rows.
    "sacct": f"""{_MARK}
case "$*" in
--helpformat) cat helpformat; exit;;
esac
ids= until_s=
for option; do
case $option in
--jobs=*) ids=${{option#*=}};;
--endtime=uts*) until_s=${{option#*=uts}};;
esac
done
[ "$until_s" -ge "$(cat first)" ] || exit 0
awk -v ids="$ids" -v mark="$mark" -f rows.awk runs""",
}
_ROWS = """BEGIN { n = split(ids, some, ","); for (i = 1; i <= n; i++) wanted[some[i]] }
{ split($0, columns, "<MARK>"); if (!n || columns[1] in wanted) { gsub("<MARK>", mark); print } }
"""


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job on all GPUs of one node; `end_s` is set once it has ended."""

    job_id: int
    node: str
    start_s: int
    end_s: int


def install(directory: Path, nodes: Sequence[tuple[str, str]]) -> None:
    """Write the commands into `directory`, which must come first on the PATH; nodes are (name, address)."""
    directory.mkdir()
    for name, text in _PROGRAMS.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\ncd {directory} || exit 1\n{text}\n")
        program.chmod(0o755)
    config = (_RECORDED / "config.txt").read_text()
    config = re.sub(r"(?m)^(ClusterName +=).*", rf"\1 {CLUSTER}", config)
    config = re.sub(r"(?m)^(SlurmUser +=).*", rf"\1 root({os.getuid()})", config)
    (directory / "config").write_text(config)
    (directory / "rows.awk").write_text(_ROWS)
    (directory / "helpformat").write_text((_RECORDED / "sacct-helpformat.txt").read_text())
    (directory / "nodes").write_text("".join(_NODE.format(name=name, address=at) for name, at in nodes))


def write_jobs(directory: Path, jobs: Sequence[SimulatedJob], *, over: bool) -> None:
    """Write these jobs as the jobs of Slurm; all are running or, with `over`, have ended."""
    columns = sacct.columns((directory / "helpformat").read_text())
    runs, shown, labels = [], [], []
    for job in jobs:
        submit_s, end_s = job.start_s - 60, job.end_s if over else job.start_s + 7 * 86400
        row = dict.fromkeys(columns, "") | dict.fromkeys(("JobID", "JobIDRaw"), str(job.job_id))
        row |= {"Cluster": CLUSTER, "JobName": "train", "User": USER, "UID": str(UID), "Account": "vision"}
        row |= {"QOS": "normal", "Partition": "gpu", "State": "COMPLETED" if over else "RUNNING"}
        row |= {"ExitCode": "0:0", "Submit": str(submit_s), "Eligible": str(submit_s)}
        row |= {"Start": str(job.start_s), "End": str(job.end_s) if over else "Unknown"}
        row |= {"ElapsedRaw": str(job.end_s - job.start_s), "Suspended": "00:00:00", "TimelimitRaw": "10080"}
        row |= {"NNodes": "1", "NodeList": job.node, "ReqTRES": _TRES, "AllocTRES": _TRES}
        runs.append("".join(f"{row[column]}<MARK>" for column in columns) + "\n")
        given = {"job_id": job.job_id, "node": job.node, "start_s": job.start_s, "submit_s": submit_s}
        state, gres = ("COMPLETED", "") if over else ("RUNNING", "gpu:a100:8(IDX:0-7)")
        shown.append(_JOB.format(**given, end_s=end_s, state=state, gres=gres))
        labels.append(f"{job.job_id}<MARK>train<MARK>slurm-gpu/1 t=abcdef012345 r=grad-share<MARK>\n")
    (directory / "first").write_text(str(min((job.start_s - 60 for job in jobs), default=0)))
    for name, lines in (("runs", runs), ("jobs", shown), ("labels", labels)):
        hidden = directory / f".{name}"
        hidden.write_text("".join(lines))
        hidden.rename(directory / name)
