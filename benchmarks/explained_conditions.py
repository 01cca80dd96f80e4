"""Side conditions whose absence no value shows on random instances of one rule, by the reason why."""

from __future__ import annotations

UNDEFINED: frozenset[tuple[str, str]] = frozenset(
    {
        ("cancel_quantize_of_dequantize", "scale constant, positive and normal"),
        ("clip_instead_of_min_of_max", "no bound is NaN"),
        ("compose_casts", "the second cast has one meaning"),
        ("move_dequantize_behind_topk", "in order"),
        ("move_dequantize_behind_maxpool", "every window covers data"),
        ("move_quantize_before_maxpool", "every window covers data"),
        ("move_recentring_before_maxpool", "every window covers data"),
        ("topk_of_integers", "in order"),
        ("divide_by_constant_as_multiplication", "no reciprocal is subnormal"),
        ("move_pad_into_average_pool", "every window covers data"),
        *(("quantise_softmax", name) for name in ("a sum of few floats", "floats that stay finite")),
        *(("quantise_softmax", name) for name in ("whole quanta", "signed bytes hold 1")),
        ("take_quantised_operator_apart", "whole quanta, if the kernel takes the next lower number"),
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
        ("view_instead_of_gathering_flat", "the view is one axis of all elements"),
        ("cut_instead_of_gathering_first", "were there too few, that would show"),
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
        *((f"merge_{op}s_of_one_input", "channels in one group") for op in ("matmul", "matmulinteger")),
        *(
            ("merge_com_microsoft_matmulnbitss_of_one_input", condition)
            for condition in ("channels in one group", "of no vectors", "the number of channels is known")
        ),
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
        ("multiply_rows_of_integers_in_place", "the view keeps the rows of a matrix's length"),
        ("multiply_and_add_rows_in_place", "the view keeps the rows"),
        ("read_extents_from_inputs", "a list of integers, or one"),
        ("stack_matmuls_of_one_input", "its extents are known"),
        ("stack_matmuls_of_one_input", "the number of channels is known"),
    }
)
"""Implied by others of the rule, or would be but for values without elements, which are not drawn: extents that constants have
are known, and without them the right side is not built."""

RARE: frozenset[tuple[str, str]] = frozenset(
    {
        ("add_constant_factors_beside_bias", "w + v finite"),
        ("cancel_factors_around_summand", "constants among c, d of ordinary size"),
        ("fold_gains_into_following_matmuls", "the sum of shift * w finite"),
        ("fold_scale_into_biased_matmul", "the weights are no vector"),
        *(
            (f"fold_scale_{into}_{op}", "s * w keeps its digits")
            for op in ("conv", "convtranspose", "gemm", "matmul")
            for into in ("into", "into_following", *(["before_shift_into_following"] if "conv" in op else []))
        ),
        ("fold_scale_into_biased_matmul", "s * w keeps its digits"),
        ("fold_scale_into_scales_of_com_microsoft_matmulnbits", "s * o2 keeps its digits"),
        ("fold_factors_of_gemm", "they keep their digits"),
        ("multiply_constant_factors_first", "a @ b keeps its digits"),
        ("scale_scaled_rms_normalization", "g * s keeps its digits"),
        ("merge_adapter_into_weights", "w + a @ b finite"),
        ("merge_adapter_into_weights_beside_bias", "w + a @ b finite"),
        ("merge_convs_with_enlarged_kernels", "explicit padding"),
        ("merge_convs_with_enlarged_kernels", "the number of channels is known"),
        ("multiply_constant_factors_first", "a @ b finite"),
        *(
            ("multiply_into_recurrent_weights", name)
            for name in ("v @ w finite", "v @ w keeps its digits", "v @ c and b finite")
        ),
        ("move_pad_into_max_pool", "ceil_mode is 0"),
        *((f"move_shift_behind_{op}", "the sum of c * w finite") for op in ("conv", "gemm", "matmul")),
        ("move_scale_behind_movement", "the scale is finite"),
        ("recognise_attention", "a number that replaces scores leaves nothing of masks beside it"),
        ("recognise_attention", "factors for each head have the precision of the queries"),
        ("recognise_attention", "of scores beside the sum of two masks as much is left as beside one after the other"),
        ("recognise_attention", "of scores in float32 the mask leaves as much as in float16"),
        ("recognise_attention", "scores are replaced where they are grouped as in their product"),
        ("recognise_attention", "the mask has a form in this precision"),
        ("recognise_attention", "masks are for as many keys as there are"),
    }
)
"""Instances that show the need are too rare: it is shown of another rule with the same condition, or by ``test_affine.py``,
``test_attention.py``, ``test_attention_masks.py``, ``test_gains_and_ranks.py``, ``test_masks_of_other_lengths.py`` and
``test_padding.py`` in ``tests/rules``."""

ROUNDING_MEANT: frozenset[tuple[str, str]] = frozenset(
    {
        ("cancel_factors_around_summand", "b of ordinary size beside c"),
        ("fold_scale_into_biased_matmul", "c of ordinary size"),
        *(
            (f"move_shift_behind_{op}", name)
            for op in ("conv", "gemm", "matmul")
            for name in ("c of ordinary size", "the shift leaves digits")
        ),
        *((f"shift_{kind}_normalization", "w of ordinary size") for kind in ("group", "instance")),
        ("shift_shifted_layer_normalization", "g of ordinary size"),
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
)
_PRODUCTS = (*_QUANTISED_PRODUCTS, "convolve_integers_to_float", "multiply_integers_to_float")
_IN_UNITS = ("convolve_integers", "multiply_integers_and_add")
_IN_ROWS = ("multiply_integers_and_rows_of_bias",)

BOUNDS: frozenset[tuple[str, str]] = frozenset(
    {
        ("fold_factors_into_dequantized_weights", "a scale of ordinary size"),
        *((rule, "no sum overflows") for rule in _PRODUCTS),
        *((rule, "positive scales, all of float32") for rule in _PRODUCTS if not rule.endswith("_to_float")),
        *((rule, "scaled sums in range") for rule in _PRODUCTS if not rule.startswith("convolve")),
        *((rule, "a positive float32 scale of the result") for rule in _QUANTISED_PRODUCTS),
        *((rule, "rounding within half a quantum") for rule in _QUANTISED_PRODUCTS),
        *((rule, "the bias fits into int32") for rule in _IN_UNITS),
        *((rule, "few rows hold the bias") for rule in _IN_ROWS),
        *((rule, "a rounded bias moves an eighth of a quantum at most") for rule in (*_IN_UNITS[1:], *_IN_ROWS)),
        ("convolve_integers", "a rounded bias moves half a quantum at most"),
        ("divide_by_power_of_two_in_quantize", "the factor is positive and ordinary"),
        ("normalise_half_precision_in_double", "float16, of which float32 holds the squares"),
        ("pass_factor_between_dequantized_values", "scales of ordinary size"),
        ("recognise_attention", "a scale in range"),
        ("recognise_rms_normalization_of_channels", "so few that a kernel adds them up precisely"),
        ("tabulate_function_of_bytes", "roundings on the way move no result by more than a quantum"),
    }
)
"""Bounds on the worst case: sums of 65,794 products, results at the ends of the range of floats, kernels that round otherwise
than the reference evaluator. Random instances are far from it, or not held to what overflows."""

SELDOM: frozenset[tuple[str, str]] = frozenset(
    {
        ("drop_clip_behind_quantize", "scale constant, positive and normal"),
        ("move_dequantize_behind_topk", "no integer dequantises to infinity"),
        *((f"{rule}_of_integers", "floats that hold the integers") for rule in ("argmax", "argmin", "topk")),
        ("move_dequantize_behind_topk", "q of 8 bits"),
        ("drop_small_addend_before_quantize", "floats that hold the integers"),
        ("multiply_integers_and_add", "one scale of the result"),
        ("merge_matmuls_of_one_matrix", "of no vectors"),
        ("multiply_and_add_rows_in_place", "the weights are a matrix"),
        ("multiply_rows_in_place", "the weights are a matrix"),
        ("recognise_quantize_with_zero_point", "a range of the type"),
    }
)
"""Shared with rules on whose instances their absence shows: on those of this rule what violates them, and nothing else, is too
seldom for sixty."""

UNDETECTED = UNDEFINED | GROWTH | FAMILY | IMPLIED | RARE | ROUNDING_MEANT | BOUNDS | SELDOM
"""Not noticed by the values on instances of the rule alone."""


def reason_for_condition(rule: str, condition: str) -> str | None:
    """Why a rule survives without the condition, or ``None`` if nobody has explained it."""
    if (rule, condition) in FAMILY:
        return "other operators with the trait need it"
    if (rule, condition) in IMPLIED | RARE:
        return "no instance that is drawn shows it"
    reasons = (
        (UNDEFINED, "the operator is not defined there"),
        (ROUNDING_MEANT, "the program means the rounding"),
        (BOUNDS, "a bound on the worst case"),
        (SELDOM, "noticed on other rules that share it"),
    )
    return next((reason for listed, reason in reasons if (rule, condition) in listed), None)
