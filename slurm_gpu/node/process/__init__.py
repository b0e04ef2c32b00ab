"""Read the jobs of processes, and the usage of jobs, from /proc and cgroups."""
