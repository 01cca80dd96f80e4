"""The e-graph: graphs encoded, rules run to saturation in egglog, types and known values kept on the host, proofs."""
