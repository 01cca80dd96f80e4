"""Modules of Relax, optimised: the same parameters and results, fewer launches, and what we do not understand stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.errors import ModelError

pytest.importorskip("tvm", reason="the extra eqsat[tvm] is not installed")

from eqsat.frontends.relax.library import relax, tvm
from eqsat.relax import from_module, fused, kernel_count, optimize, optimizing_pass
from eqsat.relax.execution import load

R = relax.op
RNG = np.random.default_rng(2)


def const(*shape: int) -> Any:
    return relax.const(tvm.runtime.tensor((RNG.normal(size=shape) / 4).astype(np.float32)))


def module_of(body: Callable[..., Any], *shapes: tuple[Any, ...], dtype: str = "float32") -> Any:
    """A module whose ``main`` emits ``body(emit, *parameters)``."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"p{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", parameters, {"num_input": len(shapes)}):
        with builder.dataflow():
            output = builder.emit_output(body(builder.emit, *parameters))
        builder.emit_func_output(output)
    return builder.get()


def projections(emit: Callable[[Any], Any], x: Any) -> Any:
    """Three products of one input, two of which meet; a residual norm; a view."""
    q, k, v = (emit(R.add(emit(R.matmul(x, const(8, 8))), const(8))) for _ in range(3))
    mixed = emit(R.multiply(emit(R.sigmoid(q)), emit(R.add(k, v))))
    normed = emit(R.nn.layer_norm(emit(R.add(mixed, x)), const(8), const(8), [-1]))
    return R.reshape(normed, (2, 4, 4))


def images(emit: Callable[[Any], Any], x: Any) -> Any:
    """A convolution, its norm, an activation."""
    y = emit(R.nn.conv2d(x, const(6, 3, 3, 3), padding=1))
    variance = relax.const(tvm.runtime.tensor(np.ones(6, np.float32)))
    y = emit(R.nn.batch_norm(y, const(6), const(6), const(6), variance, 1, training=False))
    return R.nn.relu(emit(relax.TupleGetItem(y, 0)))


def alone(module: Any) -> Any:
    """What TVM makes of a module."""
    return relax.get_pipeline("zero")(relax.transform.DecomposeOpsForInference()(module))


def run(module: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    found = load(module)["main"](*map(tvm.runtime.tensor, arrays))
    return [v.numpy() for v in (found if isinstance(found, tvm.ir.Array) else [found])]


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.normal(size=shape).astype(np.float32) for shape in shapes]


def check(module: Any, changed: Any, *given: np.ndarray) -> None:
    for a, b in zip(run(module, *given), run(changed, *given), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("body", "shape", "kernels"), [(projections, (1, 4, 8), 3), (images, (2, 3, 8, 8), 1)])
def test_optimised_modules_launch_less_and_compute_the_same(body: Any, shape: tuple[int, ...], kernels: int) -> None:
    module = module_of(body, shape)
    made = optimize(module)
    loops = fused(made)
    assert kernel_count(made) == kernel_count(loops) == kernels
    assert kernels < kernel_count(alone(module))
    assert [p.ty for p in made["main"].params] == [p.ty for p in module["main"].params]
    assert made["main"].ret_ty == module["main"].ret_ty
    assert int(made["main"].attrs["num_input"]) == 1
    check(module, loops, *arrays(shape))


def test_functions_of_kernels_may_stay_in_operators() -> None:
    module = module_of(projections, (1, 4, 8))
    made = optimize(module, composite=True)
    kernels = [f for f in made.functions.values() if f.attrs and "Composite" in f.attrs]
    assert kernels
    assert all(f.attrs["Composite"].startswith("eqsat.") and f.attrs["Primitive"] for f in kernels)
    names = {v.op.name for f in kernels for b in f.body.blocks[0].bindings if isinstance(v := b.value, relax.Call)}
    assert "relax.matmul" in names
    assert "relax.call_tir" not in names
    check(module, made, *arrays((1, 4, 8)))


def test_as_a_pass() -> None:
    module = module_of(images, (1, 3, 6, 6))
    steps = [optimizing_pass(target="tvm-like"), relax.transform.FuseTIR()]
    made = tvm.ir.transform.Sequential(steps)(module)
    assert kernel_count(made) == 1
    check(module, made, *arrays((1, 3, 6, 6)))


def with_loop() -> Any:
    """A module whose main calls a loop function of its own, named as one of ours would be, between operators."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(R.exp(builder.emit(R.tanh(x))))
            y = builder.emit_te(lambda a: tvm.topi.cumsum(a, axis=1), y, primfunc_name_hint="kernel_injective_1")
            y = builder.emit(R.sin(builder.emit(R.cos(y))))
            both, one = (builder.emit(R.topk(y, k)) for k in (2, 3))
            parts = [builder.emit(relax.TupleGetItem(v, i)) for v, i in ((both, 0), (both, 1), (one, 1))]
            output = builder.emit_output(relax.Tuple([*parts, x, parts[0]]))
        builder.emit_func_output(output)
    return builder.get()


def test_calls_that_are_not_understood_are_passed_through() -> None:
    module = with_loop()
    assert len(from_module(module).calls) == 3
    made = optimize(module)
    assert {v.name_hint for v in module.get_global_vars()} <= {v.name_hint for v in made.get_global_vars()}
    check(module, fused(made), *arrays((4, 4)))


def test_what_cannot_be_read_is_one_clear_error() -> None:
    n = tvm.tirx.Var("n", "int64")
    with pytest.raises(ModelError, match=r"'p0' is R.Tensor\(\(n, 4\).*BindSymbolicVars"):
        optimize(module_of(lambda emit, x: R.exp(x), (n, 4)))
    with pytest.raises(ModelError, match=r"expected a tvm\.IRModule with a function main"):
        optimize(tvm.IRModule({}))


def test_options_are_those_of_optimize() -> None:
    module = module_of(projections, (1, 4, 8))
    without_rules = optimize(module, only_rules=[])
    assert kernel_count(without_rules) == kernel_count(alone(module))
    check(module, without_rules, *arrays((1, 4, 8)))
    with pytest.raises(eqsat.EqsatError):
        optimize(module, target="a machine that does not exist")
