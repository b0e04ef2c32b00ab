"""Test reading pending jobs and their site factors from sprio and squeue."""

from collections.abc import Mapping, Sequence

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import WaitingJob
from slurm_gpu.slurm.commands import CommandClient

SPRIO = "  5|300\n  9|-40\n  9|-40\n"  # 9 waits in two partitions
SQUEUE = (
    "7|1795000000|1|N/A|\n5|1795000100|1-3|cpu=2,mem=1G,node=1,billing=2,gres/gpu=4|\n6|N/A|2|cpu=1|\n"
    "9|1795000200|4|N/A|\n"
)
REFUSED = (
    "`sprio …` failed (1): You are not running a supported priority plugin\n(priority/basic).\n"
    "Only 'priority/multifactor' is supported.\n"
)


def _client(answers: Mapping[str, str | SlurmError], asked: list[Sequence[str]]) -> CommandClient:
    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        asked.append(argv)
        answer = answers[argv[0]]
        if isinstance(answer, SlurmError):
            raise answer
        return answer

    return CommandClient(run, {})


def test_jobs_that_are_held_or_not_eligible_do_not_wait_for_resources():
    asked: list[Sequence[str]] = []
    found = _client({"sprio": SPRIO, "squeue": SQUEUE}, asked).waiting()
    assert found == [
        WaitingJob(5, 1795000100, 3, 300, {"cpu": 2, "mem": 1024, "node": 1, "billing": 2, "gres/gpu": 4}),
        WaitingJob(9, 1795000200, 4, -40, {}),
    ]
    assert [argv[0] for argv in asked] == ["sprio", "squeue"]


def test_no_job_waits():
    assert _client({"sprio": "", "squeue": ""}, []).waiting() == []


def test_missing_factors_are_no_error_and_a_slurmctld_that_is_down_is():
    assert _client({"sprio": SlurmError(REFUSED)}, []).waiting() is None
    with pytest.raises(SlurmError, match="down"):
        _client({"sprio": SlurmError("slurmctld is down")}, []).waiting()


@pytest.mark.parametrize(
    ("sprio", "squeue", "said"),
    [
        ("5|x\n", "", r"sprio printed '5\|x'"),
        ("", "five|1|1|N/A|\n", "squeue printed 'five"),
        ("5|1\n", "5|1|1|cpu|\n", "TRES 'cpu'"),
    ],
)
def test_unknown_output_is_an_error(sprio: str, squeue: str, said: str):
    with pytest.raises(SlurmError, match=said):
        _client({"sprio": sprio, "squeue": squeue}, []).waiting()


def test_thousands_of_jobs_are_set_in_few_calls_despite_one_that_is_gone():
    asked: list[Sequence[str]] = []
    _client({"scontrol": ""}, asked).set_site_factor([*range(1200, 0, -1), 7], 40)
    assert [(argv[2][:12], argv[3], argv[2].count(",") + 1) for argv in asked] == [
        ("JobId=1,2,3,", "SiteFactor=40", 500),
        ("JobId=501,50", "SiteFactor=40", 500),
        ("JobId=1001,1", "SiteFactor=40", 200),
    ]
    asked.clear()
    with pytest.raises(SlurmError, match="Invalid job id"):
        _client({"scontrol": SlurmError("Invalid job id")}, asked).set_site_factor(range(501), 40)
    assert len(asked) == 2
