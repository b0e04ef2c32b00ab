"""slurm-gpud: sample the GPUs of one node and ship the statistics of each job to slurm-gpudbd.

The hooks report allocations, and `slurmd -G` reports the order of the GPUs. `measure` turns samples into
records, and `shipping` stores and sends the records.
"""
