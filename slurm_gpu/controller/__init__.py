"""The daemon slurm-gpuctld, which watches Slurm and writes the snapshot that job_submit.lua reads."""
