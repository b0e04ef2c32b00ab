"""policy.yaml: its schema, its checks, and the typed model."""
