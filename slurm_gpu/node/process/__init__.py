"""Read owners and usage of jobs' processes from /proc and cgroups."""
