"""The `slurm-gpu` command: parse arguments, call a package, print. No logic of its own."""
