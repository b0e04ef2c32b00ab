"""Read slurm-gpu.yaml, and decode YAML into settings with the position of every value."""
