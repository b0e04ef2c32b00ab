"""Headers and size of requests to slurm-gpudbd."""

# Maximum size of a body, as sent.
MAX_BODY_BYTES = 1 << 20

# slurm-gpuweb sends it with READS_ALL, to have a request refused if its sender may not see every run in full.
READS_HEADER = "X-Slurm-Gpu-Reads"
READS_ALL = "all"
