"""Playing outside of voidrl: plain environments, and policies as files. Does not import torch itself."""
