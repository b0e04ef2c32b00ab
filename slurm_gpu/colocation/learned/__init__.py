"""Planners that learn: what they see of a moment, their nets, and their training.

`dqngpu` scores groups of waiting jobs by one small net; `deeprm` holds DeepRM's planners and the DqnGPU
thesis's, which look at images. All of them choose with numpy alone. They are trained in `episodes`, a model
of one GPU that runs many queues at once, with numpy as well; `torchgradients`, for devices other than the
processor, needs torch.
"""
