"""The host runs instances of the image's architecture, hypervisor type and vm mode, and has the hypervisor version that the
image asks for.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

from msgspec import structs

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.picture.columns import HostProfile
from scheduler_worker.core.requests.spec import InstanceSpec

# The names that images have for a property, the older one last.
_NAMES: dict[str, str] = {
    "hw_architecture": "architecture",
    "architecture": "architecture",
    "img_hv_type": "hypervisor_type",
    "hypervisor_type": "hypervisor_type",
    "hw_vm_mode": "vm_mode",
    "vm_mode": "vm_mode",
    "img_hv_requested_version": "version",
    "hypervisor_version_requires": "version",
}
_ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "i386": "i686", "i486": "i686", "i586": "i686"}
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "<=": le,
    ">=": ge,
    "==": eq,
    "!=": ne,
    "<": lt,
    ">": gt,
    "=": eq,
}
_CONDITION = re.compile(r"\s*(<=|>=|==|!=|<|>|=)\s*(\d{1,4}(?:\.\d{1,3}){0,2})\s*", re.ASCII)


class ImageCondition(NamedTuple):
    """One comparison with the hypervisor's version, which is a number as hosts report it (1002003 for 1.2.3)."""

    operator: str
    version: int


class ImageProperties(Filter):
    name = "image properties"
    reads = ("image_properties",)
    woken_by = (Change.FACTS,)
    image_keys = tuple(_NAMES)

    def problem_with(self, key: str, value: str) -> str:
        if _NAMES[key] == "version" and value and conditions_of(value) is None:
            return f"is no condition of a version, such as >=6.0,<8; known are {' '.join(_COMPARED)}"
        return ""

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        asked = asked_by(spec.image_properties) if spec.image_properties else {}
        return hosts.judged(lambda profile: not _lacks(profile, asked)) if asked else hosts.everyone()

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return "; ".join(_lacks(host.profile, asked_by(spec.image_properties)))


def asked_by(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What these properties of an image ask of a host, each under one name: a field of `Supported`, or `version` for
    the hypervisor's version. If a property is given by its older and its newer name, the newer one counts.
    """
    given = dict(properties)
    return {_NAMES[key]: given[key] for key in reversed(_NAMES) if given.get(key)}


def conditions_of(value: str) -> tuple[ImageCondition, ...] | None:
    """The conditions of a version, such as `>=6.0,<8`; None if they cannot be read."""
    found = [_CONDITION.fullmatch(part) for part in value.split(",")]
    if any(each is None for each in found):
        return None
    return tuple(ImageCondition(each[1], _number_of(each[2])) for each in found if each is not None)


def _lacks(profile: HostProfile, asked: Mapping[str, str]) -> list[str]:
    wanted = {name: _plain(name, value) for name, value in asked.items() if name != "version"}
    said = []
    if wanted and not any(
        all(getattr(each, name).lower() in ("", value) for name, value in wanted.items())
        for each in profile.supports
    ):
        runs = ", ".join(
            "/".join(part or "any" for part in structs.astuple(each)) for each in profile.supports
        )
        said.append(f"asked {'/'.join(wanted.values())}, runs {runs or 'nothing that it tells'}")
    if "version" in asked:
        conditions = conditions_of(asked["version"])
        assert conditions is not None, "the reader of requests has refused any other value"
        version = profile.hypervisor_version
        if not all(_COMPARED[each.operator](version, each.version) for each in conditions):
            said.append(f"asked hypervisor version {asked['version']}, has {_text_of(version)}")
    return said


def _plain(name: str, value: str) -> str:
    """The value in one spelling: in lower case, and with one name for each architecture."""
    lowered = value.lower()
    return _ARCHITECTURES.get(lowered, lowered) if name == "architecture" else lowered


def _number_of(text: str) -> int:
    """The version as one number, as hosts report it: 1002003 for 1.2.3."""
    major, minor, micro = (*map(int, text.split(".")), 0, 0)[:3]
    return (major * 1000 + minor) * 1000 + micro


def _text_of(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"
