"""Ten thousand jobs are polled every two seconds, and only changed ones are parsed again."""

from dataclasses import replace

from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.scontrol import JobReader, JobTexts, parse_jobs

TEXT = """\
JobId={job_id} JobName=train
   UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A
   Priority={priority} Nice=0 Account=vision QOS=normal
   JobState={state} Reason=None Dependency={dependency}
   RunTime={ran} TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=1795262448 EligibleTime=1795262448
   StartTime=1795262531 EndTime={end_s} Deadline=N/A
   Partition=gpu AllocNode:Sid=login:1
   NodeList=n1
   NumNodes=1 NumCPUs=4 NumTasks=2 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=2,gres/gpu=4
   AllocTRES=cpu=4,gres/gpu=4
   Command=/home/alice/train.sh
   WorkDir=/home/alice

"""
LABEL = JobTexts("train", "")


def text(job_id: int = 7, **given: object) -> str:
    values: dict[str, object] = {
        "ran": "00:00:05",
        "state": "RUNNING",
        "end_s": 1795266131,
        "priority": 4_294_901_755,
        "dependency": "(null)",
    }
    return TEXT.format(job_id=job_id, **values | given)


def read(reader: JobReader, output: str, **labels: JobTexts) -> list[QueuedJob]:
    """Return the jobs; check that they are the same as without cached ones."""
    known = {7: LABEL, 8: LABEL} | {int(name[1:]): label for name, label in labels.items()}
    found = reader.parse_jobs(output, known)
    assert found == parse_jobs(output, known)
    return found[0]


def test_a_job_that_only_ran_longer_is_not_parsed_again() -> None:
    reader = JobReader()
    (first,) = read(reader, text())
    (second,) = read(reader, text(ran="1-00:00:05"))
    assert second is first


def test_any_other_change_of_a_job_is_seen() -> None:
    reader = JobReader()
    (first,) = read(reader, text())
    assert read(reader, text(end_s=1795266132)) == [replace(first, end_s=1795266132)]
    assert read(reader, text(state="SUSPENDED")) == [replace(first, state="SUSPENDED")]
    waits = "afterok:12(unfulfilled),afterany:13(unfulfilled)"
    assert read(reader, text(priority=0, dependency=waits)) == [replace(first, priority=0, dependency=waits)]
    assert read(reader, text(), _7=JobTexts("train", "slurm-gpu/1 t=x")) == [
        replace(first, admin_comment="slurm-gpu/1 t=x")
    ]
    assert read(reader, text()) == [first]


def test_a_job_that_is_gone_leaves_the_cache() -> None:
    reader = JobReader()
    (first, other) = read(reader, text() + text(8))
    assert read(reader, text(8)) == [other]
    (again,) = read(reader, text())
    assert again == first
    assert again is not first


def test_two_jobs_with_one_id_are_not_taken_from_the_cache() -> None:
    reader = JobReader()
    read(reader, text())
    assert read(reader, text() + text()) == []


def test_a_text_without_the_time_that_it_has_run_is_read() -> None:
    short = text().replace("   RunTime=00:00:05 TimeLimit=01:00:00 TimeMin=N/A\n", "")
    reader = JobReader()
    (first,) = read(reader, short)
    assert read(reader, short)[0] is first
    assert first.time_limit_s is None
