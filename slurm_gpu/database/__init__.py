"""Run slurm-gpudbd, which stores records together with Slurm's accounting and serves queries.

The other packages query slurm-gpudbd through `slurm_gpu.client`. Login nodes do not need SQLAlchemy, because
this client does not import it.
"""
