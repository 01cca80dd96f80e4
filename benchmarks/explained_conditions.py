"""Side conditions whose absence no value shows on random instances of one rule, by the reason why."""

from __future__ import annotations

UNDEFINED: frozenset[tuple[str, str]] = frozenset(
    {
        ("clip_instead_of_min_of_max", "no bound is NaN"),
        ("compose_casts", "the second cast has one meaning"),
        ("divide_by_constant_as_multiplication", "no reciprocal is subnormal"),
        ("move_pad_into_average_pool", "every window covers data"),
        ("move_max_pool_behind_quantize", "every window covers data"),
        ("move_recentring_before_max_pool", "every window covers data"),
        *(("quantise_softmax", name) for name in ("a sum of few floats", "floats that stay finite")),
        *(("quantise_softmax", name) for name in ("whole quanta", "signed bytes hold 1")),
        *(
            (f"{kind}_norm_of_{total}", "in single precision")
            for kind in ("layer", "rms")
            for total in ("sum", "biased_sum")
        ),
        *(
            (f"normalise_embeddings_of_{words}", "in single precision")
            for words in ("words", "words_and_segments", "words_before_segments")
        ),
        ("use_group_query_attention", "no row of the mask forbids everything"),
        ("look_up_functions_of_bytes", "no rounding on the way moves the result by more than one quantum"),
        ("look_up_functions_of_columns", "no rounding on the way moves a result by more than one quantum"),
        ("recognise_group_normalization", "channels and positions"),
        ("recognise_group_normalization_of_rows", "channels and positions"),
        ("transpose_heads_before_bias", "no blocks"),
        ("transpose_heads_before_clipped_bias", "no blocks"),
    }
)
"""Where the condition fails the operator is not defined: the reference evaluator has one answer, kernels have others."""

GROWTH: frozenset[tuple[str, str]] = frozenset(
    {
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
    }
)
"""The equation holds, but what it adds is never chosen, or matches again: with neutral constants all rules together make a larger
e-graph (`benchmarks.neutral`)."""

_FLOATS_ONLY = "AveragePool GlobalAveragePool GlobalMaxPool LeakyRelu"
FAMILY: frozenset[tuple[str, str]] = frozenset(
    {
        ("move_scale_behind_leakyrelu", "so with these attributes"),
        ("move_scale_before_leakyrelu", "so with these attributes"),
        ("merge_matmuls_of_one_input", "channels in one group"),
        *(
            (f"move_scale_{side}_{op.lower()}", "x.dtype in FLOATS")
            for side in ("behind", "before")
            for op in _FLOATS_ONLY.split()
        ),
    }
)
"""Stated for all operators with a trait, needed by some: these take floats alone, or have the trait anyway."""

IMPLIED: frozenset[tuple[str, str]] = frozenset(
    {
        ("merge_matmuls_of_one_matrix", "the number of channels is known"),
        ("multiply_rows_in_place", "the view keeps the rows"),
        ("multiply_and_add_rows_in_place", "the view keeps the rows"),
        ("stack_matmuls_of_one_input", "its extents are known"),
        ("stack_matmuls_of_one_input", "the number of channels is known"),
    }
)
"""Implied by others of the rule, or would be but for values without elements, which are not drawn: extents that constants have
are known, and without them the right side is not built."""

RARE: frozenset[tuple[str, str]] = frozenset(
    {
        ("add_constant_factors_beside_bias", "w + v finite"),
        ("fold_gains_into_following_matmuls", "the sum of shift * w finite"),
        ("fold_scale_before_shift_into_following_conv", "c / s finite"),
        ("fold_scale_before_shift_into_following_convtranspose", "c / s finite"),
        ("fold_scale_into_biased_matmul", "the weights are no vector"),
        ("merge_adapter_into_weights", "w + a @ b finite"),
        ("merge_convs_with_enlarged_kernels", "explicit padding"),
        ("merge_convs_with_enlarged_kernels", "the number of channels is known"),
        ("move_pad_into_average_pool", "ceil_mode is 0"),
        ("move_pad_into_max_pool", "ceil_mode is 0"),
        ("move_pad_into_max_pool", "mode is constant"),
        ("shift_shifted_layer_normalization", "g + c finite"),
    }
)
"""Instances that show the need are too rare: it is shown of another rule with the same condition, or by ``test_affine.py``,
``test_gains_and_ranks.py`` and ``test_padding.py`` in ``tests/rules``."""

ROUNDING_MEANT: frozenset[tuple[str, str]] = frozenset(
    {
        ("merge_constant_summands", "constants among inner, outer of ordinary size"),
        ("regroup_sum_around_existing", "constants among a, b, c of ordinary size"),
    }
)
"""Where the condition fails a program rounds on purpose, by a constant beside which little is left of what it is added to: as a
difference of roundings the class allows it."""

UNDETECTED = UNDEFINED | GROWTH | FAMILY | IMPLIED | RARE | ROUNDING_MEANT
"""Not noticed by the values on instances of the rule alone."""


def reason_for_condition(rule: str, condition: str) -> str | None:
    """Why a rule survives without the condition, or ``None`` if nobody has explained it."""
    if (rule, condition) in FAMILY:
        return "other operators with the trait need it"
    if (rule, condition) in IMPLIED | RARE:
        return "no instance that is drawn shows it"
    reasons = ((UNDEFINED, "the operator is not defined there"), (ROUNDING_MEANT, "the program means the rounding"))
    return next((reason for listed, reason in reasons if (rule, condition) in listed), None)
