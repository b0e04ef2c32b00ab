"""slurm-gpu.yaml, and decoding YAML into settings with the position of every value."""
