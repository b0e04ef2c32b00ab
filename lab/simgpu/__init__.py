"""Simulated GPU work: the load of jobs on the simulated GPUs, and its true values.

``world`` accesses the file with the state of a simulated node's GPUs, ``command`` is simgpu for job scripts,
``truth`` integrates the load of simgpu, and ``faults`` injects faults. See lab/nvml/README.md.

Modules import each other relatively: job scripts load this directory as the top-level package
``simgpu``, without the rest of the lab.
"""
