"""Define fixed texts of the manual pages."""

from __future__ import annotations

from collections.abc import Sequence

from docutils import nodes
from manpage import definitions, paragraph, strong

EXIT_STATUS = (
    ("0", "Done."),
    ("1", "The command found the problem that it checks for."),
    ("2", "Invalid usage or file; the message states the place, the value and a valid value."),
    ("3", "Slurm, slurm-gpudbd, MUNGE or another external component failed."),
)

COMMON_ENVIRONMENT = (
    ("NO_COLOR", "Disables colours if set."),
    ("SLURM_GPU_CONF", "The site file, unless --config names it."),
    ("SLURM_GPU_DEBUG", "If set, errors include a traceback."),
)

SITE_FILES = (
    ("/etc/slurm-gpu/slurm-gpu.yaml", "The site file, the same on every host: see `slurm-gpu.yaml`(5)."),
)

RELATED = {
    "slurm-gpu": (
        "slurm-gpu.yaml(5)",
        "policy.yaml(5)",
        "slurm-gpud(8)",
        "slurm-gpudbd(8)",
        "slurm-gpuctld(8)",
    ),
    "job": ("slurm-gpu-jobs(1)", "sacct(1)", "scontrol(1)"),
    "jobs": ("slurm-gpu-job(1)", "sacct(1)", "squeue(1)"),
    "nodes": ("sinfo(1)", "slurm-gpud(8)"),
    "explain": ("slurm-gpu-quota(1)", "slurm-gpu-policy(1)", "sbatch(1)"),
    "quota": ("slurm-gpu-explain(1)", "slurm-gpu-policy(1)", "slurm-gpuctld(8)"),
    "policy": ("policy.yaml(5)", "slurm-gpu-explain(1)", "slurm-gpuctld(8)", "sacctmgr(1)"),
    "db": ("slurm-gpudbd(8)", "slurm-gpudbd.yaml(5)"),
    "notices": ("notices.yaml(5)", "policy.yaml(5)", "slurm-gpuctld(8)", "scontrol(1)"),
    "report": ("slurm-gpu-jobs(1)", "slurm-gpudbd.yaml(5)", "slurm-gpu.yaml(5)", "sreport(1)"),
    "doctor": ("slurm-gpud(8)", "slurm-gpudbd(8)", "slurm-gpuctld(8)"),
}

Item = tuple[Sequence[nodes.Node], Sequence[nodes.Node]]


def described(items: Sequence[tuple[str, str]]) -> list[nodes.Node]:
    """Return terms in bold with their meaning."""
    return definitions(([strong(term)], [paragraph(meaning)]) for term, meaning in items)
