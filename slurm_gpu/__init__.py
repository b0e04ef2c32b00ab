"""GPU accounting, limits and placement for Slurm clusters.

docs/architecture.md contains a map of the packages.
"""

__version__ = "0.2.0"
