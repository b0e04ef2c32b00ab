"""Periodic upkeep of the database: node periods, retention."""
