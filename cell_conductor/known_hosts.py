"""What this process knows of the cell's hosts: the host watch keeps it current (host_watch.py), and decisions go by it."""

from cell_conductor.core.host_states import ALL_UP, HostStates


class KnownHosts:
    def __init__(self) -> None:
        self.states: HostStates = ALL_UP
