"""Run slurm-gpudbd, which stores records next to Slurm's accounting and serves queries.

Other parts read through `slurm_gpu.client`, which imports no SQLAlchemy, so that login nodes need none.
"""
