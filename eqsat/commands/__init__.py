"""Commands of the command line, which `eqsat.cli` puts together."""
