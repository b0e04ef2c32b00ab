"""The pages that slurm-gpuweb sends to browsers: HTML, style and scripts, and who serves them."""
