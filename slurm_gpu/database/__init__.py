"""slurm-gpudbd, which stores records beside Slurm's accounting and answers questions about them.

Others read through `slurm_gpu.client`, which imports no SQLAlchemy, so that a login node needs none.
"""
