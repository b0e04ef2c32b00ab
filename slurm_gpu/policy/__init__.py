"""policy.yaml in force: the checked model, the Lua bundle for slurmctld, and the same Lua run elsewhere."""
