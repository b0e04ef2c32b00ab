"""The node side of jobs: one host record per segment."""
