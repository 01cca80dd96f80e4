"""Options that give values to names: extents, sizes to assume, devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsat.errors import OptionError

if TYPE_CHECKING:
    from eqsat.options import Assumed


def parse_names(option: str, given: str) -> list[str]:
    """The names in a list separated by commas, each once. Raises `OptionError` where there are none."""
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise OptionError(f"{option} {given!r} names nothing; expected NAME or NAME,NAME,...")
    return names


def parse_dims(given: list[str] | None) -> dict[str, int | str]:
    """Extents, or other names, by name, as an option that may be repeated gives them; several in one are separated by commas."""
    dims: dict[str, int | str] = {}
    for item in (part for text in given or () for part in text.split(",")):
        name, _, value = item.partition("=")
        if not name or not value:
            raise OptionError(f"--dim {item!r}: expected NAME=N with a whole number N, or NAME=OTHER with another name")
        extent = int(value) if _is_whole(value) else value
        _say_once("--dim", name, extent, dims)
        dims[name] = extent
    return dims


def parse_sizes(given: list[str] | None) -> dict[str, Assumed]:
    """Sizes to assume, by name, or the least and the largest."""
    sizes: dict[str, Assumed] = {}
    for item in (part for text in given or () for part in text.split(",")):
        name, _, value = item.partition("=")
        ends = value.split("..")
        if not name or name[-1] in "<>!" or len(ends) > 2 or not all(map(_is_whole, ends)):
            raise OptionError(f"--assume {item!r}: expected NAME=N or NAME=LOW..HIGH with whole numbers")
        assumed = int(value) if len(ends) == 1 else (int(ends[0]), int(ends[1]))
        _say_once("--assume", name, assumed, sizes)
        sizes[name] = assumed
    return sizes


def _is_whole(text: str) -> bool:
    return re.fullmatch("-?[0-9]+", text) is not None


def _say_once(option: str, name: str, value: object, given: Mapping[str, object]) -> None:
    """Raises `OptionError` where one name is given two values."""
    if given.get(name, value) != value:
        raise OptionError(f"{option} {name}: is given as {given[name]} and as {value}; give it once")


def parse_devices(given: list[str] | None, path: Path | None) -> dict[str, str]:
    """Devices by name of node, value or input; those on the command line come before those of the file."""
    devices: dict[str, str] = {}
    if path is not None:
        try:
            data: dict[Any, Any] | None = json.loads(path.read_text("utf-8-sig"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            raise OptionError(f"--devices {path}: cannot be read as JSON: {reason}") from None
        if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
            raise OptionError(f"--devices {path}: expected one object of name to device")
        devices.update(data)
    for item in given or ():
        name, _, device = item.rpartition("=")
        if not name or not device:
            raise OptionError(f"--device {item!r}: expected NAME=DEV")
        devices[name] = device
    return devices
