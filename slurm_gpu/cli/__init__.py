"""The `slurm-gpu` command, which parses arguments, calls a package, and prints the result."""
