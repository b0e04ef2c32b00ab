"""The pages that slurm-gpuweb serves: HTML, style and scripts."""
