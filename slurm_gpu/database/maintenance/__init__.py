"""Maintain the database periodically: record node periods and drop expired data."""
