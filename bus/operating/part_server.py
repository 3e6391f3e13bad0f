"""An HTTP server in a process with other parts. Only processes that serve HTTP load this, since it loads uvicorn."""

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


class PartServer(uvicorn.Server):
    """An HTTP server that runs as a part of a worker. It leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
