"""slurm-gpud: sample the GPUs of one node and ship the statistics of each job to slurm-gpudbd.

Hooks and slurmd report allocations, `measure` turns samples into records, `shipping` stores and sends them.
"""
