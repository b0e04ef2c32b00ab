"""Reservations in the database: requests, operators' decisions and outcomes."""
