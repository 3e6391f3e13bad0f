"""The microversion that a request asks for."""

from collections.abc import Mapping

from compute_sim.laboratory.ironic.core.refusals import NOT_ACCEPTABLE, RequestRefused
from compute_sim.laboratory.ironic.simulated import LATEST_MINOR

HEADER = "X-OpenStack-Ironic-API-Version"
MIN_HEADER = "X-OpenStack-Ironic-API-Minimum-Version"
MAX_HEADER = "X-OpenStack-Ironic-API-Maximum-Version"
COMMON_HEADER = "OpenStack-API-Version"
SERVICE = "baremetal"
MIN_MINOR = 1


def asked_minor(headers: Mapping[str, str]) -> int:
    """The requested minor version; without a header the oldest one."""
    asked = headers.get(HEADER.lower()) or _common(headers.get(COMMON_HEADER.lower(), ""))
    if not asked:
        return MIN_MINOR
    if asked.lower() == "latest":
        return LATEST_MINOR
    major, dot, minor = asked.partition(".")
    if not dot or not major.isdecimal() or not minor.isdecimal():
        raise RequestRefused(NOT_ACCEPTABLE, f"Invalid value for {HEADER} header: {asked[:50]!r}")
    if int(major) != 1 or not MIN_MINOR <= int(minor) <= LATEST_MINOR:
        raise RequestRefused(
            NOT_ACCEPTABLE,
            f"Version {asked[:50]} is not supported: the versions are [1.{MIN_MINOR}, 1.{LATEST_MINOR}].",
        )
    return int(minor)


def _common(header: str) -> str:
    """The version in a header such as `baremetal 1.46`, which may name other services too."""
    for each in header.split(","):
        service, _, version = each.strip().partition(" ")
        if service == SERVICE:
            return version.strip()
    return ""


def version_headers(minor: int) -> dict[str, str]:
    return {
        MIN_HEADER: f"1.{MIN_MINOR}",
        MAX_HEADER: f"1.{LATEST_MINOR}",
        HEADER: f"1.{minor}",
    }
