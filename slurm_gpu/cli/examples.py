"""Define examples of each command for --help and manual pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Maps each command to pairs of a command line and its purpose.
EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "job": (("slurm-gpu job 4711_3", "Show the GPU use of task 3 of job array 4711:"),),
    "jobs": (
        ("slurm-gpu jobs -S 7d -s F,TO", "List your failed runs of the last week:"),
        ("slurm-gpu jobs -a -o JobID,user,nodes,end", "List the runs of all users with some columns:"),
        ("slurm-gpu jobs -a -S 30d --all --csv", "Export the last month for a spreadsheet:"),
    ),
    "nodes": (
        ("slurm-gpu nodes --free", "List nodes with a free GPU:"),
        ("slurm-gpu nodes n1 n[5-8]", "Show only some nodes:"),
        ("slurm-gpu nodes --live --partition gpu", "Show live GPU use in a partition:"),
    ),
    "top": (
        ("slurm-gpu top", "Watch GPUs and pending jobs, updated every five seconds:"),
        ("slurm-gpu top --me", "Watch only your jobs:"),
        ("slurm-gpu top --once --user alice", "Print the jobs of alice once:"),
    ),
    "web": (("slurm-gpu web", "Print a link to the web page of the cluster:"),),
    "explain": (
        ("slurm-gpu explain -- sbatch --gpus=4 --time=2-0 job.sh", "Check whether a job would be accepted:"),
        (
            "slurm-gpu explain --as bob --rules -- srun --gpus=1 nvidia-smi",
            "Check a job of another user, and print each limit:",
        ),
    ),
    "forecast": (
        ("slurm-gpu forecast 4711", "Predict the start of a pending job:"),
        (
            "slurm-gpu forecast -- sbatch --gpus=4 --time=2-0 job.sh",
            "Predict the start of a job submitted now:",
        ),
    ),
    "diagnose": (
        ("slurm-gpu diagnose 4711", "Find out why a training job is slow:"),
        ("slurm-gpu diagnose 4711 --groups pp=4", "Compare GPUs within each of four pipeline stages:"),
        ("slurm-gpu diagnose 4711 --steps steps.parquet", "Use step timings that the job recorded:"),
    ),
    "quota": (("slurm-gpu quota", "Show your usage and limits:"),),
    "policy": (
        ("slurm-gpu policy check draft.yaml", "Check a draft:"),
        (
            "slurm-gpu policy replay --since 30d draft.yaml",
            "List the jobs of the last month that the draft refuses:",
        ),
        ("slurm-gpu policy apply", "Apply /etc/slurm-gpu/policy.yaml:"),
        ("slurm-gpu policy rollback", "Undo the last apply:"),
    ),
    "placement": (
        ("slurm-gpu placement status", "Show how full nodes are, and their order of allocation:"),
        ("slurm-gpu placement replay --since 30d", "Simulate the last month under other rules:"),
    ),
    "colocation": (
        (
            "slurm-gpu colocation train speeds.json --gpu-model v100 --out v100.npz",
            "Train a planner on measured speeds:",
        ),
        (
            "slurm-gpu colocation train speeds.json --out v100.npz --sbatch 8 | sbatch",
            "Train with eight seeds as a job array, and keep the best model:",
        ),
        (
            "slurm-gpu colocation evaluate speeds.json --model v100.npz",
            "Compare all planners:",
        ),
        ("slurm-gpu colocation plan speeds.json jobs.csv", "Plan which jobs share a GPU:"),
        (
            "slurm-gpu colocation profiles --since 90d profiles.json",
            "Write profiles of applications from three months of runs:",
        ),
        (
            "slurm-gpu colocation nearest profiles.json GROMACS --gpu-model 'NVIDIA A100-SXM4-80GB'",
            "Find the nearest profile for an application:",
        ),
    ),
    "reserve": (
        (
            "slurm-gpu reserve request --gpus 16 --time 3d --why pretraining",
            "Request 16 GPUs on whole nodes for three days:",
        ),
        ("slurm-gpu reserve list", "Show the calendar of reservations:"),
        ("slurm-gpu reserve approve 7", "Approve request 7 (operators):"),
    ),
    "notices": (
        ("slurm-gpu notices --dry-run --text", "Show the notices that are due, with their texts:"),
        ("slurm-gpu notices undo 4711", "Restore a job that was cancelled for idle GPUs:"),
    ),
    "audit": (
        ("slurm-gpu audit", "List the latest changes to the cluster:"),
        ("slurm-gpu audit --action urgent", "List urgent jobs and the jobs that they delayed:"),
        ("slurm-gpu audit --refused urgent", "List refused urgent jobs:"),
    ),
    "report": (
        ("slurm-gpu report build --last month --out /srv/reports", "Report on GPU use in the last month:"),
        (
            "slurm-gpu report build --since 7d --page-only --out report",
            "Write only the page, for the last seven days and today:",
        ),
    ),
    "db": (
        ("slurm-gpu db upgrade", "Upgrade the tables after a package update, before slurm-gpudbd starts:"),
        ("slurm-gpu db export --since 60d --out /srv/export", "Export the last two months as Parquet files:"),
    ),
    "doctor": (
        ("slurm-gpu doctor", "Check this host, as root:"),
        ("slurm-gpu doctor uninstall", "List the steps before you uninstall slurm-gpu:"),
    ),
}


def examples_epilog(command: str) -> str:
    """Return the examples of a command; the backspace keeps click from rewrapping their lines."""
    lines = [line for typed, purpose in EXAMPLES[command] for line in (f"  {purpose}", f"    {typed}")]
    return "\n".join(("\b", "Examples:", *lines))
