"""Pages and data of one job."""
