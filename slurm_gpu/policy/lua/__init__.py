"""Bundle, install and run the script for slurmctld."""
