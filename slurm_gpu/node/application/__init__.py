"""Which application a job runs, by an admin's rules."""
