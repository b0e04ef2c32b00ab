"""Planners that learn: their observations, nets and training.

`dqngpu` scores groups of waiting jobs by one small net. `deeprm` holds the planners of DeepRM and of the
DqnGPU thesis, which observe images. Inference needs numpy alone. Training runs in `episodes`, a model of
one GPU that simulates many queues at once, with numpy too; `torch_gradients`, for devices other than the
CPU, needs torch.
"""

# Planners that choose by a net: `slurm-gpu colocation train`.
LEARNED = ("dqngpu", "dqngpu_thesis", "deeprm_max", "deeprm_mean")
