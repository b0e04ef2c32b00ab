"""The cluster as job_submit.lua reads it: snapshot.txt, and the tables in it."""
