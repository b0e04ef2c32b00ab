"""Examples of each command, for its --help and its page of man."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[tuple[str, str]]] = {
    "job": (("slurm-gpu job 4711_3", "What the GPUs of the third task of job array 4711 did:"),),
    "jobs": (
        ("slurm-gpu jobs --user alice --since 7d", "What alice ran in the last week:"),
        ("slurm-gpu jobs --since 30d --limit 100000 --csv", "The last month, for a spreadsheet:"),
    ),
    "nodes": (
        ("slurm-gpu nodes --free", "Where a whole GPU is free now:"),
        ("slurm-gpu nodes n1 n[5-8]", "Some nodes alone:"),
        ("slurm-gpu nodes --live --partition gpu", "What the GPUs of a partition do now:"),
    ),
    "top": (
        ("slurm-gpu top", "Who uses which GPU, what waits and why, again each five seconds:"),
        ("slurm-gpu top --once --user alice", "What alice's jobs do now, once:"),
    ),
    "web": (("slurm-gpu web", "See the cluster in a browser: open the link that this prints."),),
    "explain": (
        ("slurm-gpu explain -- sbatch --gpus=4 --time=2-0 job.sh", "Would this job be accepted?"),
        ("slurm-gpu explain --as bob --rules -- srun --gpus=1 nvidia-smi", "Somebody else's, and why:"),
    ),
    "forecast": (
        ("slurm-gpu forecast 4711", "When will this job start?"),
        (
            "slurm-gpu forecast -- sbatch --gpus=4 --time=2-0 job.sh",
            "And this one, submitted now?",
        ),
    ),
    "diagnose": (
        ("slurm-gpu diagnose 4711", "Why is this training slow?"),
        ("slurm-gpu diagnose 4711 --groups pp=4", "Compare within each of four pipeline stages:"),
        ("slurm-gpu diagnose 4711 --steps steps.parquet", "With the timings that it wrote itself:"),
    ),
    "quota": (("slurm-gpu quota", "How near are my limits?"),),
    "policy": (
        ("slurm-gpu policy check draft.yaml", "Is this draft right?"),
        ("slurm-gpu policy replay --since 30d draft.yaml", "Whom would it have refused last month?"),
        ("slurm-gpu policy apply", "Put /etc/slurm-gpu/policy.yaml into force:"),
        ("slurm-gpu policy rollback", "Have back what was in force before:"),
    ),
    "placement": (
        ("slurm-gpu placement status", "How full is each node, and in which order are they taken?"),
        ("slurm-gpu placement replay --since 30d", "What would the last month have been by other rules?"),
    ),
    "colocation": (
        (
            "slurm-gpu colocation train speeds.json --gpu-model v100 --out v100.npz",
            "Train our planner on measured speeds:",
        ),
        (
            "slurm-gpu colocation train speeds.json --out v100.npz --sbatch 8 | sbatch",
            "The same with eight seeds, as a job array; the best wins:",
        ),
        (
            "slurm-gpu colocation evaluate speeds.json --model v100.npz",
            "How good are all planners on such jobs?",
        ),
        ("slurm-gpu colocation plan speeds.json jobs.csv", "Who would share a GPU with whom?"),
        (
            "slurm-gpu colocation profiles --since 90d profiles.json",
            "What do applications do to GPUs, by the runs of three months?",
        ),
        (
            "slurm-gpu colocation nearest profiles.json GROMACS --gpu-model 'NVIDIA A100-SXM4-80GB'",
            "And what is a job of one likely to do?",
        ),
    ),
    "reserve": (
        (
            "slurm-gpu reserve request --gpus 16 --time 3d --why pretraining",
            "Sixteen GPUs on whole nodes for three days, as soon as may be:",
        ),
        ("slurm-gpu reserve list", "What is reserved, and when:"),
        ("slurm-gpu reserve approve 7", "As an operator, promise what request 7 asks for:"),
    ),
    "notices": (
        ("slurm-gpu notices --dry-run --text", "Who would get which message now?"),
        ("slurm-gpu notices undo 4711", "Bring back a job that was cancelled for idle GPUs:"),
    ),
    "audit": (
        ("slurm-gpu audit", "What was done to the cluster last?"),
        ("slurm-gpu audit --act urgent", "Which urgent jobs started, and what had to wait for them?"),
        ("slurm-gpu audit --refused urgent", "Who was refused one, and what reason was given?"),
    ),
    "report": (
        ("slurm-gpu report build --last month --out /srv/reports", "What the GPUs were used for last month:"),
        (
            "slurm-gpu report build --since 7d --page-only --out report",
            "The page alone, of the last seven days and today:",
        ),
    ),
    "db": (
        ("slurm-gpu db upgrade", "After an update of the packages, before slurm-gpudbd starts:"),
        ("slurm-gpu db export --since 60d --out /srv/export", "The last two months as Parquet files:"),
    ),
    "doctor": (
        ("slurm-gpu doctor", "As root, on the controller, the database host and a GPU node:"),
        ("slurm-gpu doctor uninstall", "What to change in slurm.conf, and to type, before slurm-gpu goes:"),
    ),
}
"""By command: what to type, and what it tells."""


def shown(command: str) -> str:
    """The examples of a command as click prints them, whose own mark keeps the lines as they are."""
    lines = [line for typed, meaning in EXAMPLES[command] for line in (f"  {meaning}", f"    {typed}")]
    return "\n".join(("\b", "Examples:", *lines))
