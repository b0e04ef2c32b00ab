"""The life of an allocation, from prolog to final record."""
