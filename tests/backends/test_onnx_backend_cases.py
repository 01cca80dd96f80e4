"""The conformance cases of the ONNX package survive reading and writing."""

import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks are not installed
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from benchmarks.onnx_backend_cases import TRANSFORMS, cases, verdict

MATCHES = "^test_[a-f]", "^test_[g-l]", "^test_[m-r]", "^test_[^a-r]"


@pytest.mark.parametrize("match", MATCHES)
def test_round_trip(match: str) -> None:
    found = {case.name: verdict(case, TRANSFORMS["roundtrip"]) for case in cases(match=match)}
    assert sum(word == "equal" for word, _ in found.values()) > 100
    assert not {name: v for name, v in found.items() if v[0] in ("fails", "differs", "close")}


@pytest.mark.slow
@pytest.mark.parametrize("opset", [7, 9, 10, 12, 15, 17, 20, 26])
def test_other_opsets(opset: int) -> None:
    """Written as if the model had come with another opset, each case computes the same."""
    found = {case.name: verdict(case, TRANSFORMS[f"opset{opset}"]) for case in cases()}
    broken = {name: v for name, v in found.items() if v[0] in ("fails", "differs")}
    # "Could not find an implementation": the runtime lacks the kernel at that opset
    assert not {name: v for name, v in broken.items() if "NOT_IMPLEMENTED" not in v[1]}
