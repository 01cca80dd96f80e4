"""What no program of an e-graph and no kernels of a target can undercut; loaded for certificates only."""
