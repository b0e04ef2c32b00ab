"""Reservations in the database: requests, promises and outcomes."""
