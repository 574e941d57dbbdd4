"""Parts of the network and of its training as Triton kernels for NVIDIA GPUs: one launch, and one pass over memory, each.

All have a plain form that gives the same numbers, and that is used wherever these do not apply.
"""
