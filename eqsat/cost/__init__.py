"""Targets and cost models: what a machine can do, and the price of one kernel on it."""
