"""Side conditions whose absence no value shows on random instances of one rule, by the reason why."""

from __future__ import annotations

UNDEFINED: frozenset[tuple[str, str]] = frozenset(
    {
        ("clip_instead_of_min_of_max", "no bound is NaN"),
        ("compose_casts", "the second cast has one meaning"),
        ("move_max_pool_behind_quantize", "every window covers data"),
        ("move_recentring_before_max_pool", "every window covers data"),
        ("recognise_group_normalization", "channels and positions"),
        ("recognise_group_normalization_of_rows", "channels and positions"),
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

UNDETECTED = UNDEFINED | GROWTH | ROUNDING_MEANT
"""Not noticed by the values on instances of the rule alone."""


def reason_for_condition(rule: str, condition: str) -> str | None:
    """Why a rule survives without the condition, or ``None`` if nobody has explained it."""
    reasons = ((UNDEFINED, "the operator is not defined there"), (ROUNDING_MEANT, "the program means the rounding"))
    return next((reason for listed, reason in reasons if (rule, condition) in listed), None)
