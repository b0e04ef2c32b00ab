"""The speeds that a planner assumes for jobs that share a GPU."""
