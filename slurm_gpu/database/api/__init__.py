"""Routes of the read API, and their queries."""
