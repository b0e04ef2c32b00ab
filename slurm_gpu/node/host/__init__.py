"""Host statistics of jobs: one host record per segment."""
