"""Read the owners and the usage of jobs' processes from /proc and cgroups."""
