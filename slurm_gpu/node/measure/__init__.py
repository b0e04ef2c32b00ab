"""From readings of one device to the cumulative record of each segment that holds it."""
