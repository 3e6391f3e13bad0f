"""A server of the tests, which ends with them."""

from pathlib import Path
from typing import Self

from laboratory.private_servers import Keeper  # noqa: TC001 - it is what the fields are


class KeptServer:
    """A server below a keeper: it ends with this process in every case. `stop` removes the data. `kill` is a crash."""

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._keeper: Keeper | None = None
        self._server = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def keeper(self) -> int | None:
        """The keeper process, if there is one. It is not part of the server, and tests must not end it."""
        return self._keeper.pid if self._keeper else None

    def processes(self) -> tuple[int, ...]:
        """The server's processes, and its helpers."""
        return self._keeper.processes() if self._keeper else ()

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start without waiting; call `wait_until_ready` afterwards."""
        raise NotImplementedError

    def wait_until_ready(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        """SIGKILL every process of the server."""
        if self._keeper:
            self._keeper.kill()

    def stop(self) -> None:
        if self._keeper:
            self._keeper.close()
            self._keeper = None
