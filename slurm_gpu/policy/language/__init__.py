"""Define the schema, the checks and the typed model of policy.yaml."""
