"""`optimize` for modules of Relax: in the place of FuseOps, or of rewriting and partitioning by patterns."""

from __future__ import annotations

from typing import Any

from eqsat.frontends.relax import from_module
from eqsat.frontends.relax.library import relax, tvm
from eqsat.pipeline import optimize as optimize_graph
from eqsat.relax.module import emit_main, plan_calls


def optimize(module: Any, *, target: Any = "tvm-like", composite: bool = False, **options: Any) -> Any:
    """``module`` with ``main`` computed by the cheapest kernels found, each a call of a function of its own.

    ``main`` keeps its parameters and what it returns. Functions of kernels have the attribute ``Primitive`` and call loops, as
    after ``LegalizeOps`` and ``FuseOps``: ``relax.transform.FuseTIR`` comes next. With ``composite`` they consist of operators
    of Relax and have the attribute ``Composite`` (``eqsat.`` and the template of the kernel), as after ``FuseOpsByPattern``,
    for code generators. ``options`` are those of `eqsat.optimize`; nothing is verified where ``main`` has calls that are
    passed through. Raises `ModelError` for what cannot be read (`eqsat.relax.from_module`).
    """
    reading = from_module(module)
    if reading.calls:
        options["verify"] = False
    program = optimize_graph(reading.graph, target=target, **options).program
    plan = plan_calls(program)
    main = module["main"]
    environment = dict(zip(reading.graph.inputs, main.params, strict=True))
    environment.update((v, relax.const(tvm.runtime.tensor(c.numpy()))) for v, c in plan.constants.items())
    return emit_main(
        plan,
        environment,
        main.params,
        dict(main.attrs or {}),
        opaque=reading.call,
        others={v: f for v, f in module.functions.items() if v.name_hint != "main"},
        as_tuple=reading.returns_tuple,
        composite=composite,
    )


def optimizing_pass(**options: Any) -> Any:
    """`optimize` as a pass of TVM, for ``tvm.ir.transform.Sequential``."""

    @tvm.transform.module_pass(opt_level=0, name="eqsat.Optimize")
    def run(module: Any, _: Any) -> Any:
        return optimize(module, **options)

    return run
