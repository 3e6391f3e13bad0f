"""A build leaves a host that is silent when its cell notices that, and not only when the time of its attempt is up."""

from bus.messages.build import AttemptFailed
from engine.flavors import InstanceId
from engine.inventories import Choice
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories
from tests.simulation.workers import BUS

# A conductor looks after its hosts now and then, and its database or the broker may be slow.
SLOW_S = 6.0
TIMED_OUT = "no message from the host within"


class SilenceChecker:
    def __init__(self, findings: Findings, hosts: HostHistories) -> None:
        self._findings = findings
        self._hosts = hosts
        # Since when each conductor has listened without a fault.
        self._listens_since_s: dict[str, float] = {}
        self._began_s: dict[InstanceId, float] = {}

    def disturbed(self, process: str) -> None:
        """The process starts, dies, suffers from a fault, or reaches the broker again: it counts silence anew."""
        if process.startswith("conductor"):
            self._listens_since_s[process] = self._findings.now_s

    def all_disturbed(self) -> None:
        for process in self._listens_since_s:
            self.disturbed(process)

    def begins(self, instance: InstanceId) -> None:
        self._began_s[instance] = self._findings.now_s

    def failed(self, instance: InstanceId, failure: AttemptFailed, host: Choice, cell: str) -> None:
        if not failure.reason.startswith(TIMED_OUT):
            return
        silent_s, began_s = self._hosts.silent_since_s(host.share.host), self._began_s[instance]
        noticed_s = [
            max(silent_s, since_s) + BUS.host_down_s
            for name, since_s in self._listens_since_s.items()
            if f"-{cell}-" in name
        ]
        # A conductor that notices the silence reads the rows that wait, once. A later attempt there it sees only if it placed
        # that itself; another one may have listened for too short a time to know.
        leaves_s = min((at_s for at_s in noticed_s if at_s >= began_s), default=began_s) + SLOW_S
        if silent_s < leaves_s < self._findings.now_s:
            self._findings.breaks(
                "a build leaves a silent host",
                f"{failure.host} is silent since {silent_s:.1f}, and attempt {failure.attempt} there waited for its whole time",
            )
