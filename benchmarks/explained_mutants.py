"""Mutants that survive for a known reason: another spelling of the same value, or one within what the rule's class allows."""

from __future__ import annotations

import re

EXPLAINED: tuple[tuple[str, str, str], ...] = (
    ("a product with -1 is the quotient by it", "normalise_negation", "operator: Mul replaced by Div at root"),
    (
        "the product with 1 is the quotient by it",
        "choose_between_results_of_div_from_number_of_truth",
        "operator: Div replaced by Mul at 1",
    ),
    (
        "the operator takes a vector of one element for a number: the Reshape gives equal operands one spelling",
        "quantise_(sigmoid|leakyrelu|concatenation|globalaveragepool)|fuse_.*integer_product.*|add_(row_by_product|mask_to_bytes)",
        "omission: Reshape left out at .*",
    ),
    (
        "the operator of ONNX broadcasts scale and bias; fused operators and older kernels ask for all elements",
        "(scale|shift)_.*normalization",
        "omission: (Reshape|Expand) left out at .*",
    ),
    (
        "what is cut off instead of rounded is less than one unit of the sums, far below a quantum",
        "add_bias_to_accumulator",
        r"(omission: Round left out|operator: Round replaced by Floor) at (0\.)?6\.0",
    ),
    (
        "what is cut off instead of rounded is less than a quarter of a quantum, which class LSB allows: a blind spot",
        "multiply_integers_.*",
        r"(omission: Round left out|operator: Round replaced by Floor) at 3\.(0|1\.1\.0\.0)",
    ),
    (
        "what one row holds of the bias in the instances drawn is less than a quantum, which class LSB allows: a blind spot",
        "multiply_integers_.*rows_of_bias",
        r"(omission: Sub left out|operands: Sub with its first two operands swapped) at 3\.1\.1\.0\.0\.0",
    ),
    (
        "few of the epsilons drawn are as large as the squares beside them, to the precision of half: a blind spot",
        "normalise_half_precision_in_double",
        r"attribute: RMSNormalization\.epsilon doubled at root",
    ),
    (
        "the operand has other extents than the sum: the mutant does not fire",
        "fold_scale_into_biased_.*",
        r"variable: operand replaced by x at 1\.0",
    ),
    (
        "the mean of (x + m) * (x - m), and of x * (x - m), is that of (x - m) * (x - m)",
        "take_variance_(of_dropped_axes_)?in_two_passes",
        r"(operator: Sub replaced by Add|omission: Sub left out) at 0\.[01]|sign: operand negated at 0\.[01]\.1(\.0)?",
    ),
    (
        "the operand as it was before",
        "remove_expand_before_matmul|sink_expand_behind_elementwise",
        r"variable: operand replaced by expand(ed)? at 0(\.[01])?",
    ),
    (
        "the sum of rows is brought to its shape behind, whatever axes of 1 the vector has",
        "add_vector_to_rows",
        "omission: Reshape left out at 0.1",
    ),
    (
        "a Reshape of the list of extents has no type that could be merged: the mutant does not fire",
        "dequantize_rows",
        "operands: Reshape with its first two operands swapped at root",
    ),
    (
        "a view for other extents, or with other axes, has no type that could be merged: the mutant does not fire",
        "normalise_(un)?squeeze|normalise_flatten",
        "omission: (Un)?[Ss]queeze left out at root|operands: Concat with its first two operands swapped at 1",
    ),
    (
        "a list of extents in another order is the same list, or gives a type that could not be merged",
        "view_instead_of_gathering_flat",
        r"(constant|attribute|sign|operands): .* at 1(\..*)?|attribute: Reshape.allowzero .*|omission: (Resh|Unsq).* root",
    ),
    (
        "extents in another order are the same, or give a type that could not be merged; Shape reads no elements",
        "mask_by_triangle",
        r"(operands|attribute|constant|sign): .* at 0\.1(\..*)?",
    ),
    (
        "where the order of the elements is open, it may be the sorted one",
        "topk_of_integers",
        "attribute: TopK.sorted changed by one at 0",
    ),
    (
        "the last row takes what the equal rows before it leave, if it holds that: biases that fill several rows are too seldom",
        "multiply_integers_(and|with)_rows_of_bias",
        r"sign: operand negated at 3\.1(\.[01])+",
    ),
    (
        "only tf_crop_and_resize and cubic interpolation read the value, and the rule leaves those alone",
        "(move_dequantize|narrow)_behind_resize|(move_quantize|move_recentring|widen)_before_resize",
        r"attribute: Resize\.(extrapolation_value|cubic_coeff_a) (negated|doubled) at (0|root)|sign: operand negated at (0\.)?1",
    ),
    (
        "Shape reads no elements, and for another list of extents there is no type that could be merged",
        "einsum_as_matmul",
        r"(sign: operand negated|attribute: Shape\.end changed by one) at 0\.0\.1(\.[0-3])+",
    ),
    (
        "Shape reads no elements",
        "read_extents_from_inputs",
        "sign: operand negated at 0",
    ),
    (
        "operands with the extents of the product are too seldom among the instances: others have no type that could be merged",
        "fold_scale_into_biased_matmul",
        r"variable: operand replaced by (c at 0\.0|x at 1\.0)",
    ),
    (
        "bytes of one element, which alone can stand for a zero point, are too seldom among the instances",
        "quantise_sigmoid",
        "variable: operand replaced by a at 4",
    ),
    (
        "unsigned weights without a zero point are too seldom among the instances",
        "convolve_integers",
        "constant: uint8 constant plus one in its first element at 5",
    ),
    (
        "of one element the mean is the element itself",
        "take_variance_(of_dropped_axes_)?in_two_passes",
        r"variable: operand replaced by .* at 0\.[01]\.0",
    ),
    (
        "absolute values and squares do not see a sign",
        "remove_sign_below_abs|keep_axes_of_reduce(l1|l2|sumsquare)",
        "sign: operand negated at 0",
    ),
    (
        "a bound of a Clip of one element may be its result",
        "expand_before_functions|round_before_clip",
        r"variable: operand replaced by (f|low) at [012](\.0)?",
    ),
    ("only the shape of the operand is read", "replace_dropout_mask", "sign: operand negated at 0.0"),
    (
        "the order of the axes of a reduction is free",
        "spell_out_.*|.*_normalization",
        "constant: int64 constant reversed .*",
    ),
    ("Unsqueeze takes its axes in any order", "einsum_as_mul", r"constant: int64 constant reversed at 0\.[01]"),
    (
        "the two summands of a fused sum commute",
        "(layer|rms)_norm_of_.*sum|.*sum_before_.*_norm|add_and_normalise.*",
        "operands: com.microsoft::Skip.* with its first two operands swapped at .*",
    ),
    (
        "the sum does not depend on how its norm is scaled and shifted",
        ".*sum_before_.*_norm",
        r"attribute: .*\.epsilon .*|(sign|variable): operand .* at 0\.[23]",
    ),
    (
        "a bias of the keys adds one number to a row of scores, which softmax removes",
        "fuse_biases_into_multi_head_attention",
        "variable: operand replaced by bq at 3.1",
    ),
    (
        "one element of a table that is one more is a quantum more, which class LSB allows where few are",
        "tabulate_function_of_bytes",
        "constant: u?int8 constant plus one in its first element at 1",
    ),
    (
        "nothing comes after a single query: it looks at all that is stored, causal or not",
        "turn_heads_in_group_query_attention",
        "attribute: com.microsoft::GroupQueryAttention.causal changed by one at 0",
    ),
    (
        "keys and values that are given back do not depend on the queries",
        "store_keys_and_values_in_attention",
        r"(omission: Transpose left out|attribute: Transpose.perm .*) at 0\.0\.0|variable: operand replaced by .* at 0\.0\.0\.0",
    ),
    (
        "of the types in which a softmax may run only double is another one than float32",
        "recognise_attention",
        "attribute: Attention.softmax_precision changed by one at .*",
    ),
    (
        "ONNX Runtime takes the size of a head, and half of the features that turn, from the tables",
        "(recognise|use)_rotary_embedding.*|embed_.*",
        "attribute: (com.microsoft::)?RotaryEmbedding.(num_heads|rotary_embedding_dim) changed by one at .*",
    ),
    (
        "one row further on the table ends too soon: the operator has no value there",
        "use_rotary_embedding_of_one_table",
        "constant: int64 constant plus one in its first element at 1",
    ),
    (
        "ONNX Runtime reads the tables as they lie in memory, with or without axes of one element: the operator asks for three",
        "recognise_rotary_embedding",
        "omission: Reshape left out at .*",
    ),
    (
        "it bears on rows of 1e38 alone, where the bound on rounding is wide: noticed by tests/rules/test_attention_masks.py",
        "recognise_attention",
        r"attribute: Shrink\.bias .*|constant: float32 constant negated at 3\.0\.1\.0\.0\.1",
    ),
    (
        "of two views one above the other the outer one states the shape",
        "recognise_attention",
        r"omission: Reshape left out at 0\.0\.0",
    ),
    (
        "softmax takes the same from all elements of a row: the zero point of its operand is nothing to it",
        "quantise_softmax",
        "variable: operand replaced by zy at 2.0",
    ),
    (
        "all versions of the operator from 13 on are one function",
        "quantise_softmax",
        "attribute: com.microsoft::QLinearSoftmax.opset changed by one at root",
    ),
)
"""Reason, pattern of rule names, pattern of alterations."""


def reason_for(rule: str, alteration: str) -> str | None:
    """Why a mutant survives, or ``None`` if nobody has explained it."""
    for reason, rules, alterations in EXPLAINED:
        if re.fullmatch(rules, rule) and re.fullmatch(alterations, alteration):
            return reason
    return None
