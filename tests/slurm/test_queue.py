"""Test reading the queue from one call of squeue, as printed by Slurm 22.05."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.queue import JobPhase, QueueReader

RUNNING = (
    "3|N/A|bob|60902|nlp|normal|gpu|RUNNING|1|1|N/A|gres:shard:2|N/A|cpu=1,mem=1G,node=1,billing=1,gres/shard=2|OK"
    "|1795285306|1795285307|1795285907|n1|slurm-gpu/1 t=b01x3 r=job|N/A|N/A|N/A|10:00|train"
)
RANGE = (
    "1|N/A|alice|60901|vision|normal|gpu|PENDING|1-3|1|N/A|gres:gpu:a100:1|N/A|cpu=1,mem=4G,node=1,gres/gpu=1|OK"
    "|1795285306|1795288906|1795292506|||gres:gpu:8|gpu:16384|gres:gpu:v100:1|1-01:00:00|sys/dashboard/jupyter"
)
ARRAY = (
    "9|0-9:3%2|alice|60901|vision|normal|gpu,long|PENDING|1|1|gres:gpu:2|N/A|N/A|cpu=1,node=1,gres/gpu=2|NO"
    "|1795285306|N/A|N/A|||N/A|N/A|N/A|UNLIMITED|sweep"
)
TASK = ARRAY.replace("0-9:3%2", "3").replace("9|", "10|", 1)


class Squeue:
    def __init__(self, *rows: str) -> None:
        self.rows = list(rows)
        self.version, self.fields = "22.05.8", ""
        self.calls: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        if argv == ["squeue", "--version"]:
            return f"slurm-wlm {self.version}\n"
        if argv == ["squeue", "--helpFormat"]:
            assert self.version != "22.05.8", "it has no such option"
            return self.fields
        self.calls.append(argv)
        assert environ["SLURM_BITSTR_LEN"] == "0"
        mark = re.search("<[0-9a-f]{16}>", argv[-1])
        assert mark is not None
        return "".join(row.replace("|", mark[0]) + mark[0] + "\n" for row in self.rows)


def test_one_call_returns_all_that_is_counted() -> None:
    squeue = Squeue(RUNNING, RANGE, ARRAY, TASK)
    running, ranged, array, task = QueueReader(squeue, {}).read()
    assert len(squeue.calls) == 1
    assert (running.phase, running.uid, running.account, running.nodes) == (
        JobPhase.RUNNING,
        60902,
        "nlp",
        "n1",
    )
    assert (running.per_node, running.per_job, running.start_s) == ("gres:shard:2", "", 1795285307)
    assert running.admin_comment == "slurm-gpu/1 t=b01x3 r=job"
    assert (ranged.n_nodes, ranged.n_tasks, ranged.exclusive, ranged.admin_comment) == (3, 1, False, "")
    assert (ranged.cpus_per_gpu, ranged.mib_per_gpu) == ("gres:gpu:8", "gpu:16384")
    assert (ranged.per_node, ranged.per_task, running.per_task) == ("gres:gpu:a100:1", "gres:gpu:v100:1", "")
    assert (array.n_tasks, array.start_s, array.exclusive, array.partition) == (4, None, True, "gpu,long")
    assert task.n_tasks == 1
    assert [job.limit_s for job in (running, ranged, array)] == [600, 90_000, math.inf]
    assert [job.name for job in (running, ranged, array)] == ["train", "sys/dashboard/jupyter", "sweep"]
    assert [job.is_array for job in (running, ranged, array, task)] == [False, False, True, True]


@pytest.mark.parametrize("text", ["NOT_SET", "Partition_Limit", "", "INVALID"])
def test_the_partition_determines_a_time_limit_that_is_not_set(text: str) -> None:
    (job,) = QueueReader(Squeue(ARRAY.replace("UNLIMITED", text)), {}).read()
    assert job.limit_s is None


@pytest.mark.parametrize(
    ("version", "fields", "column", "said"),
    [
        ("22.05.8", "", "OverSubscribe", {"OK": False, "NO": True, "YES": False}),
        ("24.11.5", "Nice  OverSubscribe", "OverSubscribe", {"OK": False, "NO": True, "USER": False}),
        ("26.05.5", "Exclusive  OverSubscribe", "Exclusive", {"NO": False, "NODE": True, "USER": False}),
    ],
)
def test_exclusive_jobs_are_found_in_both_columns(
    version: str, fields: str, column: str, said: dict[str, bool]
) -> None:
    for word, exclusive in said.items():
        squeue = Squeue(ARRAY.replace("|NO|", f"|{word}|"))
        squeue.version, squeue.fields = version, fields
        (job,) = QueueReader(squeue, {}).read()
        assert job.exclusive is exclusive
        assert f",{column}:0<" in squeue.calls[0][-1]


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("SUSPENDED", JobPhase.RUNNING),
        ("CONFIGURING", JobPhase.RUNNING),
        ("REQUEUE_HOLD", JobPhase.PENDING),
        ("COMPLETING", JobPhase.ENDED),
        ("CANCELLED", JobPhase.ENDED),
        ("SOME_LATER_STATE", JobPhase.RUNNING),
    ],
)
def test_a_job_counts_until_it_has_surely_ended(state: str, phase: JobPhase) -> None:
    (job,) = QueueReader(Squeue(RUNNING.replace("RUNNING", state)), {}).read()
    assert job.phase is phase


def test_a_requeued_job_waits_although_it_is_completing() -> None:
    """The end of a requeued job is in the future; that of an ended job is not."""
    row = RUNNING.replace("RUNNING", "COMPLETING")
    for now_s, phase in ((1795285900, JobPhase.PENDING), (1795285907, JobPhase.ENDED)):
        (job,) = QueueReader(Squeue(row), {}, lambda now_s=now_s: now_s).read()  # type: ignore[misc]
        assert job.phase is phase
    (endless,) = QueueReader(Squeue(row.replace("1795285907", "N/A")), {}).read()
    assert endless.phase is JobPhase.PENDING


def test_unchanged_jobs_are_not_parsed_again() -> None:
    squeue = Squeue(RUNNING, RANGE)
    reader = QueueReader(squeue, {})
    first = reader.read()
    squeue.rows = [RUNNING, RANGE.replace("PENDING", "CANCELLED"), ARRAY]
    second = reader.read()
    assert second[0] is first[0]
    assert second[1].phase is JobPhase.ENDED
    squeue.rows = []
    assert reader.read() == []


@pytest.mark.parametrize(
    "row", [RUNNING + "|more", RUNNING.replace("3|", "x|", 1), ARRAY.replace("0-9:3", "a")]
)
def test_unreadable_output_is_an_error(row: str) -> None:
    with pytest.raises(SlurmError, match="squeue"):
        QueueReader(Squeue(row), {}).read()


def test_a_column_may_begin_with_the_end_of_a_line() -> None:
    """Test an operator's AdminComment, the only column that may contain a line break; its row stays whole."""
    odd = RUNNING.replace("|slurm-gpu/1 t=b01x3 r=job", "|\nby hand")
    first, second = QueueReader(Squeue(odd, RANGE), {}).read()
    assert first.admin_comment == "\nby hand"
    assert (first.job_id, second.job_id) == (3, 1)
