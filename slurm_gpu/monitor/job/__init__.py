"""The pages and data of one job."""
