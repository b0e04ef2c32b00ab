"""slurm-gpudbd, which stores records beside Slurm's accounting and answers questions about them.

Others read through `slurm_gpu.database.client`; it and this file import no SQLAlchemy, so that a login node
needs none.
"""
