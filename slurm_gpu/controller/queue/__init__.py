"""Poll slurmctld's queue, and compute the sums that the policy needs."""
