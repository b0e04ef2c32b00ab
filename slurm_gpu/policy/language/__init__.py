"""Schema, checks and typed model of policy.yaml."""
