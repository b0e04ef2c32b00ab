"""Recognise the application of a job by the admin's rules."""
