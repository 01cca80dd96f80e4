"""Files of targets: what they may say. Whatever else stands in one is refused, with the nearest thing that may."""

import math
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from eqsat.errors import OptionError, choices, nearest
from eqsat.ir.operator import Kind, defined_operators, operator, split_key
from eqsat.ir.types import DType

LABELS = ("elementwise", "broadcast", "bias", "injective", "reduction", "row", "window", "anchor", "view", "opaque")
"""What a stage may accept beside operators by name (`eqsat.fusion.graph`, docs/targets.md)."""

Check = Callable[[str, Any], None]


def read_target_file(path: Path) -> dict[str, Any]:
    """The data of a file. Raises `OptionError` for one that cannot be read."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise OptionError(f"target {path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"target {path}: is no TOML: {error}") from None


def check_target(where: str, data: Mapping[str, Any]) -> None:
    """Raises `OptionError` unless ``data`` describes a target: keys that are missing or that nobody reads, values of a wrong
    type, operators, kinds, labels and element types that do not exist."""
    from eqsat.cost.target import FUSIONS, Stage

    kinds = [k.value for k in Kind]
    stage: dict[str, Check] = {f.name: _flag for f in fields(Stage)}
    stage |= {"accepts": _accepted, "from_input": _number}
    template = {"name": _text, "source": _text, "several": _flag, "stages": _tables(stage, ("accepts",))}
    templates = _tables(template, ("name", "source", "stages"))
    keys: dict[str, Check] = {
        "extends": _text,
        "description": _text,
        "source": _text,
        "launch_s": _launch,
        "bandwidth_bytes_per_s": _rate,
        "peak_ops": _peaks,
        "free_kinds": _list_of(_one_of("kind", kinds)),
        "templates": templates,
        "more_templates": templates,
        "fusion": _one_of("fusion", FUSIONS),
        "recompute": _list_of(_one_of("kind", kinds)),
        "free_operators": _list_of(_operator),
        "unsupported": _list_of(_operator),
        "expanded": _list_of(_operator),
        "domains": _list_of(_domain),
        "from_pairs": _list_of(_operator),
        "slices": _flag,
        "kept_at_load": _list_of(_operator),
        "packed_products": _flag,
        "left_to_cpu": _list_of(_operator),
        "copies_s": _launch,
        "on_chip_bytes": _number,
        "argument_limit": _count,
        "cost": _cost_model,
    }
    required = ("description", "source", "launch_s", "bandwidth_bytes_per_s", "peak_ops", "free_kinds")
    _table(f"target {where!r}", data, keys, required)


def _table(where: str, data: Mapping[str, Any] | None, keys: Mapping[str, Check], required: Iterable[str]) -> None:
    if not isinstance(data, Mapping):
        raise OptionError(f"{where}: expected a table, got {data!r}")
    for key, value in data.items():
        if key not in keys:
            raise OptionError(f"{where}: key {key!r} does not exist; {choices(key, keys)}")
        keys[key](f"{where}: {key}", value)
    for key in required:
        if key not in data:
            raise OptionError(f"{where}: key {key!r} is missing")


def _tables(keys: Mapping[str, Check], required: Collection[str]) -> Check:
    def check(where: str, value: list[Any] | None) -> None:
        entry: Mapping[str, Any] | None
        if not isinstance(value, list) or not value:
            raise OptionError(f"{where}: expected a list of tables, got {value!r}")
        for i, entry in enumerate(value):
            name = entry.get("name", i + 1) if isinstance(entry, Mapping) else i + 1
            _table(f"{where} {name}", entry, keys, required)

    return check


def _peaks(where: str, value: Mapping[str, Any] | None) -> None:
    """Element types, or two of them with a star between for products of 8-bit integers."""
    types = [d.numpy.name for d in DType if d not in (DType.UNDEFINED, DType.STRING)]
    if not isinstance(value, Mapping):
        raise OptionError(
            f"{where}: expected a table of rates by element type, such as {{ default = 1e12 }}, got {value!r}"
        )
    if "default" not in value:
        raise OptionError(f"{where}: key 'default' is missing, the rate of all types that have none of their own")
    for key, rate in value.items():
        for name in () if key == "default" else key.split("*"):
            if name not in types:
                raise OptionError(
                    f"{where}: element type {name!r} does not exist; {choices(name, ['default', *types])}"
                )
        _rate(f"{where}.{key}", rate)


def _list_of(check: Check) -> Check:
    def each(where: str, value: list[Any] | None) -> None:
        if not isinstance(value, list):
            raise OptionError(f"{where}: expected a list, got {value!r}")
        for entry in value:
            _text(where, entry)
            check(where, entry)

    return each


def _one_of(what: str, names: Collection[str]) -> Check:
    def check(where: str, value: Any) -> None:
        if value not in names:
            raise OptionError(f"{where}: {what} {value!r} does not exist; {choices(value, names)}")

    return check


def _domain(where: str, value: str) -> None:
    known = sorted({split_key(key)[0] for key in defined_operators()} - {""})
    if value not in known:
        raise OptionError(
            f"{where}: no operator of domain {value!r} is defined; {choices(value, known)}; a file of --rules may define others"
        )


def _operator(where: str, value: str) -> None:
    if not _is_operator(value):
        raise OptionError(f"{where}: operator {value!r} does not exist{_hint(value, defined_operators())}")


def _operator_or_label(where: str, value: str) -> None:
    if value not in LABELS and not _is_operator(value):
        hint = _hint(value, (*LABELS, *defined_operators()))
        raise OptionError(f"{where}: {value!r} is neither an operator nor one of {', '.join(LABELS)}{hint}")


def _accepted(where: str, value: list[Any] | None) -> None:
    _list_of(_operator_or_label)(where, value)
    if not value:
        raise OptionError(f"{where}: a stage accepts at least one operator or label")


def _is_operator(key: str) -> bool:
    """Whether we know an operator of that key, or cannot know: those of foreign domains have no list."""
    import onnx

    domain, _ = split_key(key)
    return operator(key) is not None or (onnx.defs.has(key) if not domain else domain != "eqsat")


def _hint(name: str, known: Iterable[str]) -> str:
    found = nearest(name, known).strip()
    return f"; {found}" if found else ""


def _text(where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise OptionError(f"{where}: expected a text, got {value!r}")


def _cost_model(where: str, value: Any) -> None:
    from eqsat.cost.model import find_cost_model

    _text(where, value)
    try:
        find_cost_model(value)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from None


def _flag(where: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{where}: expected true or false, got {value!r}")


def _number(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise OptionError(f"{where}: expected a number that is neither negative nor infinite, got {value!r}")


def _rate(where: str, value: Any) -> None:
    """Times are divided by it."""
    _number(where, value)
    if not value:
        raise OptionError(f"{where} is {value}; it must be positive")
    if value < _LEAST_RATE:
        raise OptionError(f"{where} is {value} per second; is it meant in giga (1e9) or tera (1e12)?")


_LEAST_RATE, _LONGEST_LAUNCH_S = 1e6, 1.0
"""What no machine is slower than; a number beyond is one of another unit."""


def _launch(where: str, value: Any) -> None:
    _number(where, value)
    if value > _LONGEST_LAUNCH_S:
        raise OptionError(f"{where} is {value} seconds; are microseconds (1e-6) meant?")


def _count(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{where}: expected a whole number of at least 1, got {value!r}")
