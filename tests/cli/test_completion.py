"""What a shell is offered when a key is pressed."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from slurm_gpu.cli.main import SUMMARIES, cli
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import SlurmError

ROOT = Path(__file__).parents[2]
MINE = "17 RUNNING\n18_3 RUNNING\n18_[4-9%2] PENDING\n4+1 PENDING\n"


def offered(*words: str, site: CommandSite | None = None) -> list[str]:
    """For the last of the words, which is begun or empty."""
    complete = BashComplete(cli, {"obj": site or CommandSite()}, "slurm-gpu", "_SLURM_GPU_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def answers(text: str) -> CommandSite:
    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        assert argv[:2] == ("squeue", "--me")
        assert timeout_s <= 2
        return text

    return CommandSite(run=run)


def test_commands_and_options_are_offered() -> None:
    assert offered("") == list(SUMMARIES)
    assert offered("jo") == ["job", "jobs"]
    assert "--version" in offered("--")
    assert {"--user", "--since", "--csv"} <= set(offered("jobs", "--"))
    assert {"apply", "check", "replay"} <= set(offered("policy", ""))
    assert {"--dry-run", "--replace"} <= set(offered("policy", "apply", "--"))


def test_values_are_offered_where_they_are_few() -> None:
    assert offered("policy", "show", "--format", "") == ["text", "markdown", "html"]
    assert offered("jobs", "--state", "run") == ["RUNNING"]
    assert offered("jobs", "--state", "FAILED,time") == ["FAILED,TIMEOUT"]


def test_own_jobs_are_offered_by_the_ids_that_the_command_takes() -> None:
    assert offered("job", "", site=answers(MINE)) == ["17", "18_3", "18", "4+1"]
    assert offered("job", "18", site=answers(MINE)) == ["18_3", "18"]


def test_a_slurm_that_does_not_answer_is_no_reason_to_disturb() -> None:
    def away(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        raise SlurmError("squeue gave no answer")

    assert offered("job", "", site=CommandSite(run=away)) == []


@pytest.mark.parametrize("words", ["slurm-gpu ", "slurm-gpu --"])
def test_the_names_of_commands_cost_no_import_of_theirs(words: str) -> None:
    code = (
        "import sys; from slurm_gpu.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    told = {"COMP_WORDS": words, "COMP_CWORD": "1", "_SLURM_GPU_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **told},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("plain,")
    imported = set(done.stderr.split())
    assert not imported & {
        "rich",
        "httpx",
        "lupa",
        "sqlalchemy",
        "slurm_gpu.cli.runs.jobs",
        "slurm_gpu.policy.language.check",
    }
