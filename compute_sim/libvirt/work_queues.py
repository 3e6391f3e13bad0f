"""Runs the work on instances in threads: that on one instance in its order, that on different ones at the same time."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)


class WorkQueues:
    """Pieces of work by instance. A busy instance takes one thread."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._queues: dict[int, deque[Callable[[], None]]] = {}

    def add(self, instance: int, work: Callable[[], None]) -> None:
        with self._lock:
            queue = self._queues.get(instance)
            if queue is not None:
                queue.append(work)
                return
            self._queues[instance] = deque((work,))
        self._pool.submit(self._work_off, instance)

    def _work_off(self, instance: int) -> None:
        while True:
            with self._lock:
                queue = self._queues[instance]
                if not queue:
                    del self._queues[instance]
                    return
                work = queue.popleft()
            work()

    def close(self) -> None:
        """Wait for the work that has begun, and begin no other."""
        self._pool.shutdown(wait=True, cancel_futures=True)
