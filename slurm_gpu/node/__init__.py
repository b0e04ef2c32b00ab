"""slurm-gpud: watches the GPUs of one node and tells slurm-gpudbd what each job did with them.

hooks → allocations → watch (devices, tally, shares) → spool → ship; `daemon` turns the wheel.
"""
