"""The way in and out: the authors' checkpoints, and weights of the Flax port."""
