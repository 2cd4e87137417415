"""The way in and out: the authors' checkpoints, and timm's models."""
