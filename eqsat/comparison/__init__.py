"""Comparing cost models and targets on one model, and the trade-off between kernels, time and memory."""

from eqsat.comparison.pareto import ParetoFront, ParetoPoint, pareto
from eqsat.comparison.run import compare
from eqsat.comparison.table import Comparison, Row

__all__ = ["Comparison", "ParetoFront", "ParetoPoint", "Row", "compare", "pareto"]
