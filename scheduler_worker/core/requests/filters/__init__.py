"""Request filters: each is a pure step that reads a part of a request, one in each file."""

from scheduler_worker.core.requests.filters.attached import ATTACHED
from scheduler_worker.core.requests.filters.cpu_policy import CPU_POLICY
from scheduler_worker.core.requests.filters.cpu_thread_policy import CPU_THREAD_POLICY
from scheduler_worker.core.requests.filters.extra_specs import EXTRA_SPECS
from scheduler_worker.core.requests.filters.image_traits import IMAGE_TRAITS
from scheduler_worker.core.requests.filters.sizes import SIZES

STEPS = (SIZES, CPU_POLICY, CPU_THREAD_POLICY, EXTRA_SPECS, IMAGE_TRAITS, ATTACHED)

__all__ = ["STEPS"]
