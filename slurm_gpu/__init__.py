"""slurm-gpu: GPUs of a shared Slurm cluster made accountable, fairly shared and well used.

Rooms: `node` watches GPUs, `database` stores and answers, `slurm` talks to Slurm,
`policy` turns YAML into limits, `cli` is the command line. docs/design.md has the map.
"""

__version__ = "0.2.0"
