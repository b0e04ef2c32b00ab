"""Notify users of problems with their jobs, and cancel idle jobs if the policy requires it."""
