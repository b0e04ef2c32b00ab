"""The jobs of the demo: one of each usual kind of GPU job, and three that the policy refuses."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from lab.cluster import Lab


@dataclass(frozen=True)
class Job:
    """A submission as its user types it."""

    user: str
    about: str
    options: tuple[str, ...]
    script: str

    @property
    def argv(self) -> tuple[str, ...]:
        """The sbatch command line."""
        return ("sbatch", *self.options, f"--wrap={self.script}")

    @property
    def typed(self) -> str:
        """The command line as a user types it in a shell."""
        return f"sbatch {shlex.join(self.options)} --wrap={shlex.quote(self.script)}"

    @property
    def n_runs(self) -> int:
        """Return the number of accounting rows that the submission creates."""
        array = next((option for option in self.options if option.startswith("--array=0-")), None)
        return 1 if array is None else int(array.removeprefix("--array=0-")) + 1


@dataclass(frozen=True)
class Refusal:
    """A submission that the policy refused, with the message to the user."""

    job: Job
    message: str


@dataclass(frozen=True)
class Submitted:
    """A submission that was accepted."""

    job: Job
    job_id: int


_SHORT = "--time=10"

ACCEPTED = (
    Job(
        "alice",
        "one GPU, busy",
        (_SHORT, "--gpus=1", "-Jtrain"),
        "simgpu --util 92 --mem-mib 31000 --seconds 16",
    ),
    Job(
        "alice",
        "two nodes, two GPUs each",
        (_SHORT, "-N2", "--ntasks-per-node=1", "--gpus-per-node=2", "-Jddp"),
        "srun simgpu --util 75 --mem-mib 24000 --seconds 14",
    ),
    Job(
        "alice",
        "an array of three",
        (_SHORT, "--array=0-2", "--gpus=1", "-Jsweep"),
        "simgpu --util $((30 + 20 * SLURM_ARRAY_TASK_ID)) --mem-mib 8000 --seconds 10",
    ),
    Job(
        "bob",
        "a quarter of a GPU",
        (_SHORT, "--gres=shard:1", "-Jnotebook"),
        "simgpu --util 18 --mem-mib 6000 --seconds 15",
    ),
    Job(
        "bob",
        "and another quarter",
        (_SHORT, "--gres=shard:1", "-Jtutorial"),
        "simgpu --util 35 --mem-mib 9000 --seconds 12",
    ),
    Job("bob", "allocates a GPU and leaves it idle", (_SHORT, "--gpus=1", "-Jidle"), "sleep 12"),
    Job("bob", "no GPU at all", (_SHORT, "-c4", "-Jprep"), "sleep 5"),
    Job(
        "alice",
        "a training with warm-up and pauses",
        (_SHORT, "--gpus=1", "-Jresnet"),
        "simgpu --profile resnet50 --seconds 16",
    ),
    Job(
        "bob", "three seconds", (_SHORT, "--gpus=1", "-Jquick"), "simgpu --util 60 --mem-mib 4000 --seconds 3"
    ),
    Job(
        "alice",
        "computes, then waits for its data",
        (_SHORT, "--gpus=1", "-Jloader"),
        "simgpu --phases 'util=80,mem=12000,s=4; util=0,mem=12000,s=4; util=80,mem=12000,s=4'",
    ),
)

REFUSED = (
    Job("bob", "more GPUs than a course job may have", (_SHORT, "--gpus=4"), "python train.py"),
    Job("bob", "a day, where hours are allowed", ("--time=1-00:00:00", "--gpus=1"), "python train.py"),
    Job(
        "alice",
        "more than her share, counting running and pending jobs",
        (_SHORT, "--gpus=4"),
        "python train.py",
    ),
)


def submit(lab: Lab, job: Job) -> Submitted | Refusal:
    """Submit a job as its user would, in the user's own home directory."""
    result = lab.run_as(job.user, list(job.argv), check=False)
    accepted = re.search(r"Submitted batch job (\d+)", result.stdout)
    if accepted:
        return Submitted(job, int(accepted[1]))
    return Refusal(job, result.stderr.rstrip())
