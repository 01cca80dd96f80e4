"""Side conditions that random instances of one rule cannot tell from no condition at all, by the reason why."""

from __future__ import annotations

KERNELS: frozenset[tuple[str, str]] = frozenset(
    {
        ("add_negated_constant", "x signed"),
        ("add_to_matmul_as_gemm", "x, w, c of one float type"),
        ("gemm_as_matmul_and_add", "x, w, b of one float type"),
        ("move_left_transpose_into_matmul", "floats"),
        ("move_right_transpose_into_matmul", "floats"),
        ("move_transpose_of_matmul_inside", "floats"),
        ("move_scale_before_averagepool", "x, s of one float type"),
        ("move_scale_before_globalaveragepool", "x, s of one float type"),
        ("move_scale_before_globalmaxpool", "x, s of one float type"),
        ("move_scale_before_leakyrelu", "x, s of one float type"),
        ("move_scale_behind_averagepool", "x, s of one float type"),
        ("move_scale_behind_globalaveragepool", "x, s of one float type"),
        ("move_scale_behind_globalmaxpool", "x, s of one float type"),
        ("move_scale_behind_leakyrelu", "x, s of one float type"),
        ("move_dequantize_behind_max", "8-bit type"),
        ("move_dequantize_behind_min", "8-bit type"),
        ("move_dequantize_behind_pad", "8-bit type"),
        ("move_dequantize_behind_reducemax", "8-bit type"),
        ("move_dequantize_behind_reducemin", "8-bit type"),
        ("move_dequantize_behind_where", "8-bit type"),
        ("normalise_negation", "x signed"),
        ("normalise_reciprocal", "float"),
        ("normalise_relu", "float"),
        ("take_root_instead_of_raising", "float"),
    }
)
"""The equation holds beyond, but kernels for the operator of the right side exist for these types only."""

UNDEFINED: frozenset[tuple[str, str]] = frozenset(
    {
        ("compose_casts", "the second cast has one meaning"),
        ("move_max_pool_behind_quantize", "every window covers data"),
        ("move_recentring_before_max_pool", "every window covers data"),
    }
)
"""Where the condition fails the operator is not defined: the reference evaluator has one answer, kernels have others."""

GROWTH: frozenset[tuple[str, str]] = frozenset(
    {
        ("add_constant_to_bias_of_conv", "c not all 0"),
        ("add_constant_to_bias_of_gemm", "c not all 0"),
        ("add_constant_to_bias_of_transposed_conv", "c not all 0"),
        ("fold_scale_before_shift_into_following_conv", "the folded value is another value"),
        ("fold_scale_into_biased_matmul", "the scaled value is another value"),
        ("fold_scale_into_conv", "the scaled value is another value"),
        ("fold_scale_into_following_conv", "the folded value is another value"),
        ("fold_scale_into_following_gemm", "the folded value is another value"),
        ("fold_scale_into_following_matmul", "the folded value is another value"),
        ("fold_scale_into_following_transposed_conv", "the folded value is another value"),
        ("fold_scale_into_gemm", "the scaled value is another value"),
        ("fold_scale_into_matmul", "the scaled value is another value"),
        ("fold_scale_into_transposed_conv", "the scaled value is another value"),
        ("fold_shift_into_following_conv", "the folded value is another value"),
        ("move_left_transpose_into_gemm", "the transposed operand varies"),
        ("move_left_transpose_into_matmul", "the transposed operand varies"),
        ("move_right_transpose_into_gemm", "the transposed operand varies"),
        ("move_right_transpose_into_matmul", "the transposed operand varies"),
        ("move_scale_before_averagepool", "s not all 1"),
        ("move_scale_before_globalaveragepool", "s not all 1"),
        ("move_scale_before_globalmaxpool", "s not all 1"),
        ("move_scale_before_leakyrelu", "s not all 1"),
        ("move_scale_before_maxpool", "s not all 1"),
        ("move_scale_before_relu", "s not all 1"),
        ("move_scale_behind_averagepool", "s not all 1"),
        ("move_scale_behind_globalaveragepool", "s not all 1"),
        ("move_scale_behind_globalmaxpool", "s not all 1"),
        ("move_scale_behind_leakyrelu", "s not all 1"),
        ("move_scale_behind_maxpool", "s not all 1"),
        ("move_scale_behind_relu", "s not all 1"),
        ("move_shift_behind_matmul", "the folded value is another value"),
    }
)
"""The equation holds, but what it adds is never chosen, or matches again: all rules together make a larger e-graph without the
condition (`test_conditions_limit_growth`)."""

UNDETECTED = KERNELS | UNDEFINED | GROWTH

EXPLAINED_CONDITIONS = (
    (KERNELS, "kernels exist for these types only"),
    (UNDEFINED, "the operator is not defined there"),
    (GROWTH, "it limits the growth of the e-graph, which the tests notice with all rules together"),
)


def reason_for_condition(rule: str, condition: str) -> str | None:
    """Why a rule survives without the condition, or ``None`` if nobody has explained it."""
    return next((reason for listed, reason in EXPLAINED_CONDITIONS if (rule, condition) in listed), None)
