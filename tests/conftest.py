"""Settings of every test."""

import os

import torch

torch.set_num_threads(1)  # the networks here are too small to share between threads

if not torch.cuda.is_available():  # without a GPU Triton's kernels are run by its interpreter, on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")
