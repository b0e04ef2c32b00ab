"""A report as files: one HTML page with its charts, tables as CSV and Parquet, pictures as SVG and PNG."""
