"""Files of measured speeds and profiles in the supported formats."""
