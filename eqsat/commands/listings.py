"""``eqsat rules`` and ``eqsat targets``: what there is to choose from."""

from inspect import cleandoc
from typing import Annotated, Any

import typer

from eqsat.commands.common import Json, Quiet, errors, show


def rules(
    name: Annotated[str | None, typer.Argument(help="Show this rule only, with its description.")] = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """List the rewrite rules: equation, conditions, exactness class, source."""
    with errors(json_path):
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
        lines: list[str] = []
        for r in listed:
            lines += [f"{r['name']}  [{r['family']}, {r['exactness']}]", f"    {r['equation']}"]
            lines += [f"    if {'; '.join(r['conditions'])}"] if r["conditions"] else []
            lines.append(f"    {r['source']}")
        lines.append(f"{len(listed)} rules" if name is None else "\n" + cleandoc(listed[0]["description"]))
        show(listed, "\n".join(lines), json_path, quiet)


def targets(json_path: Json = None, quiet: Quiet = False) -> None:
    """List the targets and the cost models."""
    with errors(json_path):
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
        lines = [f"{t.name}\n    {t.description}\n    {t.source}" for t in found]
        lines += [f"cost {m.name}: {m.description}, in {m.unit}" for m in cost_models().values()]
        show(data, "\n".join(lines), json_path, quiet)
