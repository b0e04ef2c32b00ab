"""The `slurm-gpu` command: parse, call a room, render. No logic of its own."""
