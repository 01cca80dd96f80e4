"""The bound block by block, for graphs that are too large for one close look."""
