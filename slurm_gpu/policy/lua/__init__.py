"""The script for slurmctld: bundling, installing and running it."""
