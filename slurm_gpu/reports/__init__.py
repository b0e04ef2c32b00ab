"""Create reports for a period: the accounting table and its figures.

`load` reads one period from the database into numpy columns (`job_table`), divides GPU time between server
types and zones (`shares`), and adds the capacity of each (`capacity`). The modules in `figures` are pure
functions of this data.
"""
