"""Store and serve reservations: requests, operators' decisions and outcomes."""
