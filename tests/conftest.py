"""Settings of every test."""

import os
import signal

import torch

torch.set_num_threads(1)  # the networks here are too small to share between threads

if not torch.cuda.is_available():  # without a GPU Triton's kernels are run by its interpreter, on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under `nohup` it would be ignored, in the runs of tests too
