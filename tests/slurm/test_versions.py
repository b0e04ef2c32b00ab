"""Output of newer Slurm that differs from 22.05 is parsed too."""

import pytest

from slurm_gpu.slurm import sacct, scontrol

_JOB_2411 = """\
JobId=7 JobName=train
   UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A
   Priority=1 Nice=0 Account=vision QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:05 TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=1795262448 EligibleTime=1795262448
   StartTime=1795262531 EndTime=1795266131 Deadline=N/A
   Partition=gpu AllocNode:Sid=login:1
   NodeList=n[1-2]
   NumNodes=2 NumCPUs=4 NumTasks=2 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=2,mem=8G,node=2,billing=2,gres/gpu=4
   AllocTRES=cpu=4,mem=8G,node=2,billing=4,gres/gpu=4,gres/gpu:a100=4
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:a100:4
     Nodes=n[1-2] CPU_IDs=0-1 Mem=4096 GRES=gpu:a100:2(IDX:0-1)
   MinCPUsNode=1 MinMemoryNode=4G MinTmpDiskNode=0
   Features=a100 DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) LicensesAlloc=(null) Network=(null)
   Command=/home/alice/train.sh
   WorkDir=/home/alice/my project
   TresPerNode=gres/gpu:2

"""


def test_requested_and_allocated_apart_as_from_2411():
    label = scontrol.JobTexts("train", "")
    jobs, uncertain = scontrol.parse_jobs(_JOB_2411, {7: label})
    assert not uncertain
    (job,) = jobs
    assert (job.tres_requested["cpu"], job.tres_allocated["cpu"]) == (2, 4)
    assert "gres/gpu:a100" not in job.tres_requested
    assert job.gpu_index == {"n1": {"gpu": [0, 1]}, "n2": {"gpu": [0, 1]}}
    assert (job.gres_per_node, job.features) == ("gres/gpu:2", "a100")


def test_columns_of_newer_versions_are_requested_only_there():
    old, new = sacct.columns("JobID Reserved State"), sacct.columns("JobID Planned Restarts SLUID State")
    assert new == [*old, "Restarts", "SLUID"]


_NAMES = ["JobID", "JobIDRaw", "Restarts", "SLUID"]
_REST = [name for name in sacct.columns("") if name not in _NAMES]


def _row(job: str, raw: str, submit: str = "5") -> str:
    words = {"Submit": submit, "ElapsedRaw": "0", "NNodes": "1"}
    return "|".join([job, raw, "2", "s7K", *(words.get(name, "") for name in _REST)]) + "|\n"


def test_an_unreadable_row_is_logged_once_and_leaves_the_others(caplog: pytest.LogCaptureFixture):
    text = _row("11", "11") + _row("12", "12", submit="Unknown") + _row("13", "13")
    for _ in range(2):
        assert [run.job_id for run in sacct.parse_rows([text], [*_NAMES, *_REST], "|")] == [11, 13]
    (message,) = caplog.messages
    assert "job 12, Submit" in message
    assert "'Unknown'" in message


def test_restarts_and_sluid_are_read_where_they_are():
    (run,) = sacct.parse_rows([_row("12_3", "15")], [*_NAMES, *_REST], "|")
    assert (run.job_id, run.array_job_id, run.array_task) == (15, 12, 3)
    assert (run.restart, run.sluid) == (2, "s7K")
