"""Reservations in the database: what was asked for and promised, and how it was kept."""
