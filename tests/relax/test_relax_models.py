"""Real models on TVM: launches after FuseTIR are the kernels that we counted, and outputs agree with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import eqsat
from eqsat.verification.feeds import random_feeds

pytest.importorskip("tvm", reason="the extra eqsat[tvm] is not installed")

from eqsat.relax import Executable, fused, kernel_count, to_module


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_base_b1s128", "resnet50"])
def test_kernels_are_those_counted(name: str, real_model: Callable[[str], Path]) -> None:
    program = eqsat.optimize(real_model(name), target="tvm-like", verify=False).program
    assert kernel_count(fused(to_module(program).module)) == program.kernel_count


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nasrnn", "squeezenet"])
def test_kernels_are_those_counted_and_outputs_agree(name: str, real_model: Callable[[str], Path]) -> None:
    result = eqsat.optimize(real_model(name), target="tvm-like", verify=False)
    executable = Executable(result.program)
    assert kernel_count(executable.module) == result.program.kernel_count
    feeds = random_feeds(result.original, 0)
    found = executable(feeds)
    for output, expected in eqsat.run(result.original, feeds, engine="onnxruntime").items():
        np.testing.assert_allclose(found[output], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
