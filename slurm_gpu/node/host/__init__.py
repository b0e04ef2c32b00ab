"""Create host records of jobs, one per segment."""
