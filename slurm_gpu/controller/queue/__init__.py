"""Poll slurmctld's queue, and sum what the policy needs."""
