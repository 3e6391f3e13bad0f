"""Requests: their check, and the spec of one of their instances."""

from engine.flavors import RequestProblem
from engine.requests.reading import (
    COUNT_MAX,
    Alternative,
    lowered,
    priority_of,
    priority_of_wait,
    read_alternatives,
    read_request,
    with_specs,
)
from engine.requests.spec import InstanceSpec

__all__ = [
    "COUNT_MAX",
    "Alternative",
    "InstanceSpec",
    "RequestProblem",
    "lowered",
    "priority_of",
    "priority_of_wait",
    "read_alternatives",
    "read_request",
    "with_specs",
]
