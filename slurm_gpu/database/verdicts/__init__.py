"""What the watch over running jobs finds: kept in the database, and told to whoever asks."""
