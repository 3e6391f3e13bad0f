"""Build requests: their check, and the spec of one of their instances."""

from scheduler_worker.core.requests.reading import read_request
from scheduler_worker.core.requests.spec import InstanceSpec

__all__ = ["InstanceSpec", "read_request"]
