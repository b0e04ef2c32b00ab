"""Provide the planners that learn: their observations, nets and training.

`dqngpu` scores groups of waiting jobs with one small net. `deeprm` contains the planners of DeepRM and of the
DqnGPU thesis, which observe images. Inference and training need only numpy. Training runs in `episodes`,
which simulates many queues at once, each on one GPU. `torch_gradients` trains on devices other than the CPU
and requires torch.
"""

# Planners that choose with a neural net; `slurm-gpu colocation train` trains them.
LEARNED_PLANNERS = ("dqngpu", "dqngpu_thesis", "deeprm_max", "deeprm_mean")
