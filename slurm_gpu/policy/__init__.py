"""policy.yaml → limits: the checked model, the Lua bundle for slurmctld, the same Lua run elsewhere."""
