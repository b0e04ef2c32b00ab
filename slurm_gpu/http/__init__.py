"""Provide the HTTP server of slurm-gpudbd and slurm-gpuweb, its limits, and the identification of callers."""
