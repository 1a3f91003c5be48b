"""Settings of every test."""

import torch

torch.set_num_threads(1)  # the networks here are too small to share between threads
