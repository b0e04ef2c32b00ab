"""Simulated GPU work: what jobs do to the simulated GPUs, and the truth about it.

``world`` is the file that a simulated node's GPUs live in, ``command`` is simgpu for job scripts,
``truth`` integrates what simgpu did, ``faults`` breaks things. See lab/nvml/README.md.

Modules import each other relatively: job scripts load this directory as the top-level package
``simgpu``, without the rest of the lab.
"""
