"""Answers of the read API."""
