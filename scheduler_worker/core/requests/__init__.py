"""Build requests: their check, and the spec of one of their instances."""

from scheduler_worker.core.requests.reading import COUNT_MAX, read_request
from scheduler_worker.core.requests.spec import InstanceSpec

__all__ = ["COUNT_MAX", "InstanceSpec", "read_request"]
