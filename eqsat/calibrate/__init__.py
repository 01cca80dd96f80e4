"""Timing single kernels of a runtime on this machine."""
