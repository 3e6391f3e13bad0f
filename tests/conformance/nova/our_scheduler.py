"""Starts `moor run nova-scheduler` and what it needs, in the stead of Nova's own scheduler."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.conformance.nova.stack import NotStartedError, NovaStack


@contextmanager
def our_scheduler(stack: NovaStack) -> Iterator[None]:
    raise NotStartedError(f"no scheduler of ours for {stack.directory}")
    yield
