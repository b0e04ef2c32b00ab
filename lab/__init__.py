"""A real Slurm cluster on one host, with simulated GPUs, for the demo, the tests and development.

``lab.cluster.Lab(layout, options).up()`` starts it, and ``.down()`` removes every trace; ``lab/up`` and
``lab/down`` do the same in a shell.
"""
