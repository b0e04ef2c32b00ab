"""Reports on a period: the accounting table, what it says, and figures of it.

`load` reads one period from the database into numpy columns (`jobtable`), with the GPU time shared out over
server types and zones (`shares`) and what there was of both (`capacity`). `figures` are pure functions of
these.
"""
