"""Check policy.yaml, compile it into the Lua bundle for slurmctld, and run the same Lua code elsewhere."""
