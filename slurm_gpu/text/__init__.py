"""Format and parse amounts, times, tables and hostlists."""
