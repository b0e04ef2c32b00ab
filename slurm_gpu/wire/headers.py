"""Define the maximum body size, and a header, of requests to slurm-gpudbd."""

# Maximum size of a body, in bytes as sent.
MAX_BODY_BYTES = 1 << 20

# slurm-gpuweb sends this header with READS_ALL, so that slurm-gpudbd refuses a sender that may not see all
# runs.
READS_HEADER = "X-Slurm-Gpu-Reads"
READS_ALL = "all"
