"""policy.yaml → limits: the checked model, the Lua bundle for slurmctld, and running that same Lua elsewhere."""
