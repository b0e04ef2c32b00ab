"""Write snapshot.txt, the state of the cluster for job_submit.lua, and the tables in it."""
