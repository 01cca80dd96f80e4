"""The typed graph, one definition for each operator, and the reference interpreter. Everything else builds on this."""
