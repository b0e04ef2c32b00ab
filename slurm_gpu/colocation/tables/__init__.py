"""Read and write files of measured speeds in the supported formats."""
