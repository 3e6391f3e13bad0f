"""Follows the rows of the cells. States only advance, and no attempt is used again. No claim is released while a silent host
may still have the instance. A moving instance runs on one host.
"""

from collections.abc import Sequence

from cell_conductor.core.rows import Instance, flavor_of
from engine.flavors import InstanceId
from tests.simulation.boots_checkers import PowerChecker, SilenceChecker
from tests.simulation.findings import Findings
from tests.simulation.host_history import HostHistories, short_id
from tests.simulation.moves_checker import MovesInCells
from tests.simulation.real_instances import RealInstances

NEXT = {
    "": {"building", "error", "deleting", "deleted"},
    "building": {"swapping", "active", "offloaded", "error", "deleting", "deleted"},
    "swapping": {"building", "offloaded", "error", "deleting", "deleted"},
    "active": {"rebuilding", "moving", "deleting", "deleted"},
    "rebuilding": {"active", "broken", "deleting", "deleted"},
    "moving": {"moved", "stopped", "shelved", "offloaded", "active", "broken", "deleting", "deleted"},
    "moved": {"moving", "active", "stopped", "deleting", "deleted"},
    "stopped": {"moving", "deleting", "deleted"},
    "shelved": {"moving", "deleting", "deleted"},
    "offloaded": {"swapping", "deleted"},
    # A rebuild that ran into its timeout may still succeed, and so may the return of an instance that moved.
    "broken": {"rebuilding", "moving", "active", "deleting", "deleted"},
    "error": {"deleting", "deleted"},
    "deleting": {"deleted"},
    "deleted": set(),
}

# A conductor learns within one look how another one of its cell was told that a host is set; its database may be away.
MODE_LATE_S = 8.0


class CellsChecker:
    def __init__(self, findings: Findings, real_instances: RealInstances, hosts: HostHistories) -> None:
        self._findings = findings
        self.silence = SilenceChecker(findings, hosts)
        self._hosts = hosts
        self._real_instances = real_instances
        self._moves = MovesInCells(findings, real_instances)
        self._power = PowerChecker(findings, real_instances)
        self.rows: dict[InstanceId, Instance] = {}
        # The images of the last rebuilds that were done.
        self._images: dict[InstanceId, str] = {}

    def written(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None:
        for row in rows:
            before = self.rows.get(row.id)
            if before is None or before is not row:
                self._follow(before, row)
                self._moves.follow(before, row)
            self.rows[row.id] = row
        for each in forgotten:
            before = self.rows.pop(each, None)
            if before is not None and before.cleanups:
                self._findings.breaks(
                    "silence is not failure", f"{short_id(each)} is forgotten with {before.cleanups}"
                )

    def _follow(self, before: Instance | None, row: Instance) -> None:
        was = "" if before is None else before.state
        if was != row.state or (before is not None and before.attempt != row.attempt):
            host = "" if row.host is None else row.host.name
            self._findings.log("cell", "{}: {}, attempt {} on {}", row.id, row.state, row.attempt, host)
        if was != row.state and row.state not in NEXT[was] and not _in_one_batch(was, row.state):
            self._findings.breaks(
                "nothing is done twice", f"{short_id(row.id)} went from {was!r} to {row.state!r} in its cell"
            )
        if row.state == "building" and (before is None or before.attempt != row.attempt):
            self._check_mode(row)
            self._check_not_failed(row)
            self.silence.begins(row.id)
        if was != row.state:
            self._check_end(row, was)
            self._power.becomes(row, was)
        if before is not None:
            self._follow_attempt(before, row)

    def _check_end(self, row: Instance, was: str) -> None:
        if row.state == "active":
            self._check_built(row)
            self._check_image(row)
            self._check_flavor(row)
        elif row.state == "offloaded" and was == "moving":
            self._check_nowhere(row)

    def _follow_attempt(self, before: Instance, row: Instance) -> None:
        if before.state == "building" and before.host is not None and before.order is not None:
            for failure in row.failures[len(before.failures) :]:
                self.silence.failed(row.id, failure, before.host, before.order.cell)
        if row.attempt < before.attempt:
            self._findings.breaks(
                "nothing is done twice",
                f"{short_id(row.id)} went from attempt {before.attempt} back to {row.attempt}",
            )
        if (
            row.attempt == before.attempt
            and row.host != before.host
            and before.host is not None
            and not _left_its_host(before, row)
        ):
            self._findings.breaks(
                "nothing is done twice",
                f"attempt {row.attempt} of {short_id(row.id)} moved from {before.host.name} to "
                f"{row.host.name if row.host else 'nowhere'}",
            )
        if row.sequence < before.sequence:
            self._findings.breaks(
                "sequences of events only grow", f"{short_id(row.id)} went back to sequence {row.sequence}"
            )

    def _check_mode(self, row: Instance) -> None:
        """Nothing new is built on a host that is down or dead; on one that is draining, only what was placed there before."""
        assert row.host is not None, "an instance that is built has a host"
        modes = ("down", "dead") if row.attempt == 1 else ("down", "dead", "draining")
        if self._hosts.is_set(row.host.share.host, *modes, for_s=MODE_LATE_S):
            self._findings.breaks(
                "a host that is not up gets no new instance",
                f"attempt {row.attempt} of {short_id(row.id)} is built on {row.host.name}, which is not set up",
            )

    def _check_not_failed(self, row: Instance) -> None:
        """A host that failed to build an instance is not tried again for the same boot, nor given as a further alternate."""
        assert row.host is not None, "an instance that is built has a host"
        failed = {each.host for each in row.failures if not each.is_refused}
        if row.move is None and row.host.name in failed:
            self._findings.breaks(
                "a host that failed does not build it again",
                f"attempt {row.attempt} of {short_id(row.id)} is built on {row.host.name}, which has failed before",
            )

    def _check_built(self, row: Instance) -> None:
        """An instance that is active in its row was built on its host (the host may have lost it since)."""
        assert row.host is not None, "an active instance has a host"
        if not self._real_instances.has_built(row.id, row.host.share.host, row.host_attempt):
            self._findings.breaks(
                "nothing is built twice",
                f"{short_id(row.id)} is active by attempt {row.host_attempt}, which {row.host.name} has not built",
            )

    def _check_nowhere(self, row: Instance) -> None:
        """An instance that was offloaded is on no host, except where it is to be destroyed."""
        cleaning_up = {each.host for each in row.cleanups}
        for host in {place for place, _ in self._real_instances.running.get(row.id, {})} - cleaning_up:
            if self._real_instances.still_there(row.id, host) and not self._hosts.was_dead(host):
                self._findings.breaks(
                    "an offloaded instance is nowhere",
                    f"{short_id(row.id)} is offloaded, and {self._hosts.name(host)} has it",
                )

    def _check_flavor(self, row: Instance) -> None:
        """Check that an instance that runs is as large as its claim, also after a resize that was confirmed or
        reverted. A flavor that asks by extra specs alone has no CPUs, and is not judged.
        """
        assert row.order is not None, "an active instance was placed"
        assert row.host is not None, "an active instance has a host"
        held = sum(each.amount for each in row.host.share.amounts if each.resource in ("VCPU", "PCPU"))
        flavor = flavor_of(row, row.order)
        vcpus = flavor.vcpus
        # The emulator's processor is one more.
        more = flavor.extra_specs.get("hw:emulator_threads_policy") == "isolate"
        if vcpus and held != vcpus + more:
            self._findings.breaks(
                "an instance is as large as its claim",
                f"{short_id(row.id)} holds {held} processors on {row.host.name}, and its flavor has {vcpus}",
            )

    def _check_image(self, row: Instance) -> None:
        if row.rebuild is not None and not row.rebuild.failure:
            self._images[row.id] = row.rebuild.image.source
        if problem := self.wrong_image(row):
            self._findings.breaks("an active instance runs the image that was ordered last", problem)

    def wrong_image(self, row: Instance) -> str:
        """Why an active instance does not run the image that was ordered last; empty if it does, or if its host has
        lost it. Orders of rebuilds that failed do not count.
        """
        assert row.host is not None, "an active instance has a host"
        host, rebuild = row.host.share.host, row.rebuild
        is_rebuilt = rebuild is not None and not rebuild.failure
        if is_rebuilt and not self._real_instances.node_has_image(row.id, host, self._images[row.id]):
            return f"{short_id(row.id)} is active, and {row.host.name} has another image"
        first = row.order.image.source if row.order is not None and row.order.image is not None else ""
        ordered = self._images.get(row.id, first)
        image = self._real_instances.image_of(row.id, host, row.host_attempt)
        # It may have been unshelved from its own image since.
        if image is None or image == ordered or image.startswith(f"{row.id}-"):
            return ""
        return f"{short_id(row.id)} is active, and {row.host.name} has {image!r} instead of {ordered!r}"


def _in_one_batch(was: str, now: str) -> bool:
    """Whether a row gets from one state to the other by two steps: a batch may contain several messages about one
    instance, and all of them are one commit.
    """
    return now in {later for next_ in NEXT[was] for later in NEXT[next_]}


def _left_its_host(before: Instance, row: Instance) -> bool:
    """Whether the instance was offloaded, or the host of an unshelve that failed has cleaned up. In the same commit it may
    have been deleted as well.
    """
    is_offload = before.move is not None and before.move.kind == "offload" and before.state == "moving"
    is_offloaded = is_offload or before.state == "offloaded"
    return row.host is None and (row.state == "offloaded" or (row.state == "deleted" and is_offloaded))
