"""Planners that learn: their observations, nets and training.

`dqngpu` scores groups of waiting jobs by one small net. `deeprm` contains the planners of DeepRM and of the
DqnGPU thesis, which observe images. Inference needs only numpy. Training also needs only numpy: it runs in
`episodes`, a model of one GPU that simulates many queues at once. `torch_gradients` needs torch, and trains
on devices other than the CPU.
"""

# Planners that choose by a net, for `slurm-gpu colocation train`.
LEARNED_PLANNERS = ("dqngpu", "dqngpu_thesis", "deeprm_max", "deeprm_mean")
