"""Mutants that survive for a known reason: another spelling of the same value, or one within what the rule's class allows."""

from __future__ import annotations

import re

EXPLAINED: tuple[tuple[str, str, str], ...] = (
    (
        "an axis says nothing beside a single scale, and the rule asks for one",
        "move_(de)?quantize_.*|move_(relu|clip|max|min)_.*|move_leaky_.*",
        "attribute: (Dequantize|Quantize)Linear.axis another .*",
    ),
    ("the zero point states the type, too", "quantize_unsigned", "attribute: QuantizeLinear.output_dtype .*"),
    (
        "a product with ones or with -1 is the quotient by them",
        "add_constant_to_bias_of_.*|merge_(biases|scales)_of_one_split|normalise_negation|.*_normalization|"
        "move_shift_behind_matmul|fold_shift_into_following_conv",
        "operator: Mul replaced by Div at .*",
    ),
    (
        "numbers of one element broadcast whatever their rank: the Reshape states a form that kernels ask for",
        "quantise_.*|fuse_.*integer_product.*|add_constant_to_bias_of_.*|fold_scale_into_biased_matmul|move_scale_before_bounds|"
        "move_shift_behind_matmul|.*_normalization|fold_shift_into_following_conv",
        "omission: Reshape left out at .*",
    ),
    ("a Resize by a negative scale has no value to compare", "move_.*_resize", "sign: operand negated at .*2"),
    (
        "the mean of (x + m) * (x - m) is that of (x - m) * (x - m)",
        "take_variance_in_two_passes",
        "(operator: Sub replaced by Add at 0.0|sign: operand negated at 0.0.1.0)",
    ),
    ("the absolute value does not see a sign", "remove_sign_below_abs", "sign: operand negated at 0"),
    ("only the shape of the operand is read", "replace_dropout_mask", "sign: operand negated at 0.0"),
    (
        "the order of the axes of a reduction is free",
        "spell_out_.*|.*_normalization",
        "constant: int64 constant reversed .*",
    ),
    (
        "the two summands of a fused sum commute",
        "normalise_sum|add_and_normalise.*",
        "operands: com.microsoft::Skip.* with its first two operands swapped at .*",
    ),
    (
        "a bias of the keys adds one number to a row of scores, which softmax removes",
        "fuse_biases_into_multi_head_attention",
        "variable: operand replaced by bq at 3.1",
    ),
    (
        "an absent zero point that is off by one moves a result by a quantum, which class LSB allows: a blind spot",
        "quantise_.*|add_bias_to_accumulator",
        "constant: u?int8 constant plus one in its first element at .*",
    ),
    (
        "a bias in accumulator units that is cut off instead of rounded is off by less than one unit, far below a quantum",
        "add_bias_to_accumulator",
        "omission: Round left out at 6.0",
    ),
    (
        "keys and values that are given back do not depend on the queries",
        "store_keys_and_values_in_attention",
        "omission: Transpose left out at 0.0.0",
    ),
    (
        "of the types in which a softmax may run only double is another one than float32",
        "recognise_attention",
        "attribute: Attention.softmax_precision changed by one at .*",
    ),
    (
        "the remainder comes second only behind a single full row, which is taken from it one time",
        "multiply_integers_(and|with)_rows_of_bias",
        r"omission: Mul left out at 3\.1\.1\..*",
    ),
    (
        "ONNX Runtime takes the size of a head, and half of the features that turn, from the tables",
        "recognise_rotary_embedding|embed_.*",
        "attribute: RotaryEmbedding.(num_heads|rotary_embedding_dim) changed by one at .*",
    ),
    (
        "ONNX Runtime reads the tables as they lie in memory, with or without axes of one element: the operator asks for three",
        "recognise_rotary_embedding",
        "omission: Reshape left out at .*",
    ),
    (
        "rows far from zero are shifted by their greatest number: by another such number they take nothing of the scores in either",
        "recognise_attention",
        r"attribute: Shrink\.(bias|lambd) .*|constant: float32 constant .* at 3\.0\.1\.0\.0\.1",
    ),
    (
        "of two views one above the other the outer one states the shape",
        "recognise_attention",
        r"omission: Reshape left out at 0\.0\.0",
    ),
)
"""Reason, pattern of rule names, pattern of alterations."""


def reason_for(rule: str, alteration: str) -> str | None:
    """Why a mutant survives, or ``None`` if nobody has explained it."""
    for reason, rules, alterations in EXPLAINED:
        if re.fullmatch(rules, rule) and re.fullmatch(alterations, alteration):
            return reason
    return None
