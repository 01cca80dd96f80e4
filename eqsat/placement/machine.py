"""Machines: devices, each with a target, and the links between them; which value is computed on which device."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eqsat.cost.model import CostModel, Work
from eqsat.cost.target import Target, as_target
from eqsat.errors import OptionError
from eqsat.ir.operator import Kind, split_key
from eqsat.ir.operators.devices import DEVICE_COPY
from eqsat.ir.types import Type
from eqsat.lower.selection import Writable


@dataclass(frozen=True, slots=True)
class Link:
    """A way for copies between two devices, in both directions: bandwidth in bytes per second, latency in seconds."""

    bandwidth_bytes_per_s: float
    latency_s: float
    source: str


PCIE = Link(
    6.3e10,
    1e-5,
    "PCI Express 5.0 x16: 16 lanes of 32 GT/s with 128b/130b encoding, 63 GB/s in each direction before protocol overhead "
    "(PCI-SIG base specification 5.0, 2019); latency nominal, that of starting a small copy. As published, not measured",
)
"""The link of the default machine."""


@dataclass(frozen=True)
class Machine:
    """Devices by name with their targets, and the links between pairs of them.

    ``devices``: name -> target, a shipped one by its name; the first is the host, where inputs come from and outputs go
    unless said otherwise. ``links``: pair of devices in the order of ``devices`` -> link. A copy takes the link of its two
    devices, never a way round; where there is none, nothing is copied.
    """

    devices: Mapping[str, str | Target]
    links: Mapping[tuple[str, str], Link]

    def __post_init__(self) -> None:
        if not self.devices:
            raise OptionError("machine: there are no devices; name at least the host")
        for name in self.devices:
            self.target(name)
        order = list(self.devices)
        for pair, link in self.links.items():
            for name in pair:
                if name not in self.devices:
                    raise OptionError(f"machine: link between {' and '.join(pair)}: there is no device {name!r}")
            if order.index(pair[0]) >= order.index(pair[1]):
                raise OptionError(f"machine: link between {' and '.join(pair)}: name two devices, in their order")
            if not link.bandwidth_bytes_per_s > 0 or not link.latency_s >= 0:
                raise OptionError(f"machine: link between {' and '.join(pair)}: bandwidth or latency is not positive")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.devices)

    @property
    def host(self) -> str:
        return self.names[0]

    def target(self, device: str) -> Target:
        """The target of a device."""
        return as_target(self.devices[device])

    def link(self, one: str, other: str) -> Link | None:
        """The link between two devices."""
        return self.links.get((one, other)) or self.links.get((other, one))

    def resolve(self, name: str, where: str) -> str:
        """The device called ``name``; ``cuda`` is ``cuda:0`` where that is the device. Raises `OptionError` if there is none."""
        for device in (name, f"{name}:0"):
            if device in self.devices:
                return device
        raise OptionError(f"{where}: device {name!r} does not exist; choose one of {', '.join(self.devices)}")


def default_machine(host_target: str | Target = "onnxruntime-cpu") -> Machine:
    """The host ``cpu`` and one accelerator ``cuda:0`` (an H100), linked by PCI Express."""
    return Machine({"cpu": host_target, "cuda:0": "h100"}, {("cpu", "cuda:0"): PCIE})


def read_machine(path: str | Path) -> Machine:
    """The machine that a TOML file describes. Raises `OptionError` for a file that cannot be read or is not of the form ::

    [devices]                # the host first
    cpu = "onnxruntime-cpu"  # name = target
    "cuda:0" = "h100"

    [[links]]
    between = ["cpu", "cuda:0"]
    bandwidth_bytes_per_s = 6.3e10
    latency_s = 1e-5
    source = "where the figures come from"
    """
    try:
        data: dict[str, Any] = tomllib.loads(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise OptionError(f"{path}: cannot read the machine: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: the machine is not TOML: {error}") from None
    try:
        devices = {str(k): str(v) for k, v in data["devices"].items()}
        order = list(devices)
        links: dict[tuple[str, str], Link] = {}
        for link in data.get("links", ()):
            one, other = link["between"]
            if one in devices and other in devices and order.index(one) > order.index(other):
                one, other = other, one
            links[one, other] = Link(float(link["bandwidth_bytes_per_s"]), float(link["latency_s"]), link["source"])
    except KeyError as error:
        raise OptionError(f"{path}: machine: key {error.args[0]!r} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"{path}: machine: {error}") from None
    return Machine(devices, links)


def copy_price(model: CostModel, link: Link, size_bytes: float) -> float:
    """Price of copying so many bytes: that of a kernel which reads them, on a target as fast as the link."""
    work = Work((DEVICE_COPY,), Kind.OPAQUE, 0.0, size_bytes, 0.0, "default")
    rates = Target(
        "link", "", link.source, link.latency_s, link.bandwidth_bytes_per_s, {"default": float("inf")}, frozenset()
    )
    return model.kernel_cost(work, rates)


Place = tuple[int, str]
"""Representative of an e-class, and a device."""


@dataclass(frozen=True)
class Placement:
    """What is computed where.

    ``made``: place -> handle of the e-node that computes the value there, operands first. ``copied``: place -> device from
    which the value is copied there. ``sources``: e-class of a mark between annotations -> e-class of the marked value.
    ``roots``: output -> place; ``homes``: input or output -> device where it lives. ``cost``, ``cost_before`` (the original
    program, each node where it is annotated, on the host if nowhere) and ``lower_bound`` count every operator as one kernel,
    and every copy.
    """

    made: Mapping[Place, int]
    copied: Mapping[Place, str]
    sources: Mapping[int, int]
    roots: Mapping[str, Place]
    homes: Mapping[str, str]
    cost: float
    cost_before: float
    lower_bound: float
    method: str

    def source_of(self, cls: int) -> int:
        """The e-class of which ``cls`` is the mark of an annotation, or ``cls`` itself."""
        while cls in self.sources:
            cls = self.sources[cls]
        return cls


def kernels_of(machine: Machine, device: str, writable: Writable) -> Writable:
    """``writable`` for one device: operators that the device has kernels for."""
    target = machine.target(device)

    def allowed(key: str, types: Sequence[Type | None]) -> bool:
        domain, _ = split_key(key)
        return (not domain or domain in target.domains) and key not in target.expanded and writable(key, types)

    return allowed
