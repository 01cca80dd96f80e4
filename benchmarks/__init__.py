"""Benchmarks and the model skeletons they run on."""
