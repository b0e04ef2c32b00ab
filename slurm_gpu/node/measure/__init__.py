"""From samples of one device to the cumulative record of each segment on it."""
