"""slurm-gpuctld: watches Slurm and writes the snapshot that job_submit.lua reads."""
