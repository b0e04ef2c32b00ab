"""Write a report: one HTML page with charts, and pictures as SVG and PNG."""
