"""Side conditions whose absence no value shows on random instances of one rule, by the reason why."""

from __future__ import annotations

UNDEFINED: frozenset[tuple[str, str]] = frozenset(
    {
        ("cancel_quantize_of_dequantize", "scale constant, positive and normal"),
        ("clip_instead_of_min_of_max", "no bound is NaN"),
        ("compose_casts", "the second cast has one meaning"),
        ("move_dequantize_behind_topk", "in order"),
        ("move_quantize_before_maxpool", "every window covers data"),
        ("move_recentring_before_maxpool", "every window covers data"),
        ("recognise_group_normalization", "channels and positions"),
        ("recognise_group_normalization_of_rows", "channels and positions"),
        ("topk_of_integers", "in order"),
        ("transpose_heads_before_bias", "no blocks"),
        ("transpose_heads_before_clipped_bias", "no blocks"),
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
"""The equation holds, but what it adds is never chosen, or matches again: with neutral constants all rules together make a larger
e-graph (`benchmarks.neutral`)."""

ROUNDING_MEANT: frozenset[tuple[str, str]] = frozenset(
    {
        ("merge_constant_summands", "constants among inner, outer of ordinary size"),
        ("regroup_sum_around_existing", "constants among a, b, c of ordinary size"),
    }
)
"""Where the condition fails a program rounds on purpose, by a constant beside which little is left of what it is added to: as a
difference of roundings the class allows it."""

_QUANTISED_PRODUCTS = (
    "convolve_integers",
    "multiply_integers",
    "multiply_integers_and_add",
    "multiply_integers_and_rows_of_bias",
    "multiply_integers_with_bias",
    "multiply_integers_with_rows_of_bias",
)
_PRODUCTS = (*_QUANTISED_PRODUCTS, "convolve_integers_to_float", "multiply_integers_to_float")
_IN_UNITS = ("convolve_integers", "multiply_integers_and_add", "multiply_integers_with_bias")
_IN_ROWS = ("multiply_integers_and_rows_of_bias", "multiply_integers_with_rows_of_bias")

BOUNDS: frozenset[tuple[str, str]] = frozenset(
    {
        *((rule, "no sum overflows") for rule in _PRODUCTS),
        *((rule, "positive scales, all of float32") for rule in _PRODUCTS),
        *((rule, "scaled sums in range") for rule in _PRODUCTS),
        *((rule, "a positive float32 scale of the result") for rule in _QUANTISED_PRODUCTS),
        *((rule, "rounding within half a quantum") for rule in _QUANTISED_PRODUCTS),
        *((rule, "the bias fits into int32") for rule in _IN_UNITS),
        *((rule, "few rows hold the bias") for rule in _IN_ROWS),
        *((rule, "a rounded bias moves an eighth of a quantum at most") for rule in (*_IN_UNITS[1:], *_IN_ROWS)),
        ("add_biases_before_split", "ordinary quotients"),
        ("convolve_integers", "a rounded bias moves half a quantum at most"),
        ("divide_by_power_of_two_in_quantize", "the factor is positive and ordinary"),
        ("divide_in_quantize_instead_of_multiplying", "the factor is positive and ordinary"),
        ("drop_clip_behind_quantize", "float32"),
        ("fold_factor_into_dequantize", "a scale of ordinary size"),
        ("fold_factors_into_dequantized_weights", "a scale of ordinary size"),
        ("pass_factor_between_dequantized_values", "a scale of ordinary size"),
        ("tabulate_function_of_bytes", "roundings on the way move no result by more than a quantum"),
    }
)
"""Bounds on the worst case: sums of 65,794 products, results at the ends of the range of floats, kernels that round otherwise
than the reference evaluator. Random instances are far from it, or not held to what overflows."""

SELDOM: frozenset[tuple[str, str]] = frozenset(
    {
        ("argmax_of_integers", "no integer dequantises to infinity"),
        ("convolve_integers_to_float", "one zero point of the weights"),
        ("drop_clip_behind_quantize", "scale constant, positive and normal"),
        ("move_dequantize_behind_topk", "no integer dequantises to infinity"),
        ("move_dequantize_behind_topk", "q of 8 bits"),
        ("move_dequantize_behind_transpose", "no blocks"),
        ("multiply_integers_and_add", "one scale of the result"),
        ("multiply_integers_and_rows_of_bias", "one scale of the result"),
        ("multiply_integers_with_bias", "one scale of the result"),
        ("recognise_quantize_with_zero_point", "a range of the type"),
    }
)
"""Shared with rules on whose instances their absence shows: on those of this rule what violates them, and nothing else, is too
seldom for sixty."""

UNDETECTED = UNDEFINED | GROWTH | ROUNDING_MEANT | BOUNDS | SELDOM
"""Not noticed by the values on instances of the rule alone."""


def reason_for_condition(rule: str, condition: str) -> str | None:
    """Why a rule survives without the condition, or ``None`` if nobody has explained it."""
    reasons = (
        (UNDEFINED, "the operator is not defined there"),
        (ROUNDING_MEANT, "the program means the rounding"),
        (BOUNDS, "a bound on the worst case"),
        (SELDOM, "noticed on other rules that share it"),
    )
    return next((reason for listed, reason in reasons if (rule, condition) in listed), None)
