"""Routes of the read API."""
