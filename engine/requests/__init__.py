"""Requests: their check, and the spec of one of their instances."""

from engine.flavors import RequestProblem
from engine.requests.assembling import Alternative, read_alternatives, with_specs
from engine.requests.reading import COUNT_MAX, read_request
from engine.requests.spec import InstanceSpec

__all__ = [
    "COUNT_MAX",
    "Alternative",
    "InstanceSpec",
    "RequestProblem",
    "read_alternatives",
    "read_request",
    "with_specs",
]
