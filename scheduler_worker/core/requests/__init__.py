"""Build requests: their check, and the spec of one of their instances."""

from scheduler_worker.core.requests.alternatives import Alternative, read_alternatives, with_specs
from scheduler_worker.core.requests.checking import COUNT_MAX, read_request
from scheduler_worker.core.requests.spec import InstanceSpec

__all__ = ["COUNT_MAX", "Alternative", "InstanceSpec", "read_alternatives", "read_request", "with_specs"]
