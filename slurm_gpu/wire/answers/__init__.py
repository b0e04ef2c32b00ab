"""Define the answers of the read API."""
