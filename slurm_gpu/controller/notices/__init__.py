"""Notify users of problems with their jobs, and cancel idle jobs where the policy says so."""
