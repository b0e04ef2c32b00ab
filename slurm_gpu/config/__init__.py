"""slurm-gpu.yaml, and reading YAML files with the position of every value."""
