"""In which order the hosts of a cluster are tried: the host that failed least recently comes first. Pure."""


class HostTurns:
    def __init__(self, count: int, first: int = 0) -> None:
        """`first` is the number of the host to try first, as long as none has failed. The others follow in their order."""
        self._usual = [(first + number) % count for number in range(count)]
        self._failures = 0
        self._failed_at = dict.fromkeys(self._usual, 0)

    def order(self) -> list[int]:
        """The numbers of all hosts, in the order in which they should be tried now."""
        return sorted(self._usual, key=self._failed_at.__getitem__)

    def failed(self, host: int) -> None:
        """Note that a host could not be used, or that a connection to it was lost: all others are tried before it."""
        self._failures += 1
        self._failed_at[host] = self._failures
