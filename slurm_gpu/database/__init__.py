"""slurm-gpudbd, which stores records beside Slurm's accounting and answers questions about them.

Others read through `slurm_gpu.client.database_client`; it and this file import no SQLAlchemy, so that a login node
needs none.
"""
