"""What `slurm-gpu doctor` looks at: a function per check, all listed in `slurm_gpu.cli.doctor.checks.every`."""
