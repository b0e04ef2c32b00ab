"""slurm-gpuctld: the one watcher of Slurm's state, and what it writes down for job_submit.lua."""
