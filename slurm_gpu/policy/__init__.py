"""Check policy.yaml, compile it into the Lua bundle for slurmctld, and run that bundle outside slurmctld."""
