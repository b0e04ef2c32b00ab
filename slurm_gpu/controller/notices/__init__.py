"""Users are told what is wrong with their jobs, and idle ones are ended where the policy says so."""
