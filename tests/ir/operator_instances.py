"""Random applications of every operator we define: ``INSTANCES[op](rng)`` draws one.

Ranks, broadcasting, extents of 1, element types, absent inputs and attributes vary; adversarial values are among the inputs.
"""

from tests.ir import instances_elementwise, instances_movement, instances_products, instances_reductions
from tests.ir.operator_drawing import INSTANCES, Instance

FAMILIES = (instances_elementwise, instances_movement, instances_products, instances_reductions)

__all__ = ["FAMILIES", "INSTANCES", "Instance"]
