"""Run slurm-gpudbd, which stores records together with Slurm's accounting and serves queries.

The other packages query it through `slurm_gpu.client`, which does not import SQLAlchemy, so login nodes do
not need it.
"""
