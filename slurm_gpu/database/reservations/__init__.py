"""Reservations in the database: requests, decisions and outcomes."""
