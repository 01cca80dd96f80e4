"""``eqsat rules`` and ``eqsat targets``: what there is to choose from."""

from inspect import cleandoc
from typing import Annotated, Any

import typer

from eqsat.commands.common import Json, Quiet, errors, write_json


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(rules)
    app.command()(targets)


def rules(
    name: Annotated[str | None, typer.Argument(help="Show this rule only, with its description.")] = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """List the rewrite rules: equation, conditions, exactness class, source."""
    with errors():
        import eqsat.rules  # pyright: ignore[reportUnusedImport]  # noqa: F401  # registers the shipped rules
        from eqsat.rewrite import find_rule, registered_rules

        listed: list[dict[str, Any]] = [
            {
                "name": r.name,
                "family": r.family,
                "equation": r.equation,
                "conditions": [c.name for c in r.conditions],
                "exactness": r.exactness.label,
                "source": r.source,
                "description": r.doc,
            }
            for r in (registered_rules() if name is None else [find_rule(name)])
        ]
        write_json(listed, json_path)
        if quiet or json_path == "-":
            return
        for r in listed:
            print(f"{r['name']}  [{r['family']}, {r['exactness']}]\n    {r['equation']}")
            if r["conditions"]:
                print(f"    if {'; '.join(r['conditions'])}")
            print(f"    {r['source']}")
        print(f"{len(listed)} rules" if name is None else "\n" + cleandoc(listed[0]["description"]))


def targets(json_path: Json = None, quiet: Quiet = False) -> None:
    """List the targets and the cost models."""
    with errors():
        from eqsat.cost.model import cost_models
        from eqsat.cost.target import load_target, target_names

        found = [load_target(name) for name in target_names()]
        data = {
            "targets": [
                {
                    "name": t.name,
                    "description": t.description,
                    "source": t.source,
                    "launch_s": t.launch_s,
                    "bandwidth_bytes_per_s": t.bandwidth_bytes_per_s,
                    "peak_ops": dict(t.peak_ops),
                }
                for t in found
            ],
            "cost_models": [
                {"name": m.name, "unit": m.unit, "description": m.description} for m in cost_models().values()
            ],
        }
        write_json(data, json_path)
        if quiet or json_path == "-":
            return
        for t in found:
            print(f"{t.name}\n    {t.description}\n    {t.source}")
        for m in cost_models().values():
            print(f"cost {m.name}: {m.description}, in {m.unit}")
