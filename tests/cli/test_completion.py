"""Shell completion offers commands, options and values."""

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


def completions(*words: str, site: CommandSite | None = None) -> list[str]:
    """Complete the last word, which may be empty."""
    complete = BashComplete(cli, {"obj": site or CommandSite()}, "slurm-gpu", "_SLURM_GPU_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def site_with_jobs(text: str) -> CommandSite:
    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        assert argv[:2] == ("squeue", "--me")
        assert timeout_s <= 2
        return text

    return CommandSite(run=run)


def test_commands_and_options_are_offered() -> None:
    assert completions("") == list(SUMMARIES)
    assert completions("jo") == ["job", "jobs"]
    assert "--version" in completions("--")
    assert {"--user", "--since", "--csv"} <= set(completions("jobs", "--"))
    assert {"apply", "check", "replay"} <= set(completions("policy", ""))
    assert {"--dry-run", "--replace"} <= set(completions("policy", "apply", "--"))


def test_values_of_a_short_list_are_offered() -> None:
    assert completions("policy", "show", "--format", "") == ["text", "markdown", "html"]
    assert completions("jobs", "--state", "run") == ["RUNNING"]
    assert completions("jobs", "--state", "FAILED,time") == ["FAILED,TIMEOUT"]


def test_own_jobs_are_offered_by_ids_that_the_command_accepts() -> None:
    assert completions("job", "", site=site_with_jobs(MINE)) == ["17", "18_3", "18", "4+1"]
    assert completions("job", "18", site=site_with_jobs(MINE)) == ["18_3", "18"]


def test_without_an_answer_from_slurm_no_job_is_offered() -> None:
    def fail(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        raise SlurmError("squeue gave no answer")

    assert completions("job", "", site=CommandSite(run=fail)) == []


@pytest.mark.parametrize("words", ["slurm-gpu ", "slurm-gpu --"])
def test_completing_command_names_imports_no_command(words: str) -> None:
    code = (
        "import sys; from slurm_gpu.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    variables = {"COMP_WORDS": words, "COMP_CWORD": "1", "_SLURM_GPU_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
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


def test_a_list_of_runs_imports_no_client_of_slurm() -> None:
    """A listing of a million runs takes as long as its imports."""
    code = (
        "import sys; import slurm_gpu.cli.main, slurm_gpu.cli.runs.jobs, slurm_gpu.client.database_client\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert {name for name in imported if name.startswith("slurm_gpu.slurm.")} == {"slurm_gpu.slurm.runner"}
    assert not imported & {"sqlalchemy", "numpy", "jinja2", "lupa", "starlette"}
