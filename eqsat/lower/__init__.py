"""From a saturated e-graph and prices to a program: which e-nodes, in which order, with which constants folded."""
