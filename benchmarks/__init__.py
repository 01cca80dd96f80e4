"""Benchmarks and the model skeletons they run on.

Models that have to be optimised again without a rule are defects here, not results.
"""

import warnings

warnings.filterwarnings("error", r".*: optimised again without ")
