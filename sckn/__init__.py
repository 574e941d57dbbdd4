"""Supervised convolutional kernel networks (Mairal, 2016) on PyTorch."""

__version__ = "0.1.0.dev0"
