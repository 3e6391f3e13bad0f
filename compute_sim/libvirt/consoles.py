"""The consoles of guests: each is a file that the hypervisor writes to."""

from pathlib import Path

from compute_sim.drivers import ConsoleText, NoConsole


def read_console(path: Path, start: int, limit: int) -> ConsoleText:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = max(0, size + start) if start < 0 else min(start, size)
            file.seek(begin)
            return ConsoleText(file.read(limit), begin, size)
    except FileNotFoundError:
        raise NoConsole("its guest has written nothing yet: it has not run here") from None
    except OSError as error:
        raise NoConsole(f"its console cannot be read: {error.strerror}") from error
