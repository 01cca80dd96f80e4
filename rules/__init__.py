if __name__ != "eqsat.rules":
    raise ImportError("import this package as eqsat.rules")
