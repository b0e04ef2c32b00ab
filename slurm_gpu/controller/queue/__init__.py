"""slurmctld's queue: polling it, and the totals that the policy needs."""
