"""Manage allocations from the prolog to the final record."""
