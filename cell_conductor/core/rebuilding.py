"""Rebuilds: an active instance gets another image on its host. Attempt, host and share stay.

    active, broken ──▶ rebuilding ──▶ active   done; or it failed, and the old instance still runs
                                 └──▶ broken   it failed, and nothing runs there; or it timed out

Rebuilds of an instance are numbered. The API level orders the next one only when it knows the result of the last one.
So a later number counts, and messages about an earlier rebuild change nothing. A rebuild that timed out may still be
done, or turn out never to have begun: then the instance is active after all. A delete ends a rebuild at any time.
"""

from msgspec import structs

from bus.messages.cell import InstanceRedeployed, RebuildInCell
from bus.messages.hosts import NODE
from cell_conductor.core.instance import REBUILDS, redeploy_order
from cell_conductor.core.transition import Transition

NOT_YET = "only an instance on a bare-metal node can be rebuilt yet, not one on a hypervisor"


def on_rebuild(transition: Transition, order: RebuildInCell) -> None:
    row, rebuild = transition.row, order.rebuild
    if row.state not in ("active", "rebuilding", "broken"):
        return
    if row.rebuild is not None and rebuild.number <= row.rebuild.number:
        return
    assert row.order is not None, "an active instance was placed"
    assert row.host is not None, "an active instance has a host"
    was_active = row.state == "active"
    transition.withdraw(REBUILDS, attempt=row.host_attempt)
    transition.continue_from(rebuild.number)
    transition.change(rebuild=rebuild, reason="")
    if row.host.kind != NODE:
        _end_failed(transition, NOT_YET, is_active=True)
    elif transition.now >= rebuild.ends_by:
        _end_failed(transition, "the order reached its cell after the deadline", is_active=was_active)
    else:
        transition.send(redeploy_order(row, row.order, row.host, rebuild), state="rebuilding")
        transition.wait_longer(rebuild.ends_by)


def on_redeployed(transition: Transition, word: InstanceRedeployed) -> None:
    row = transition.row
    is_known = row.host_attempt == word.attempt and row.host is not None and row.host.share.host == word.host
    if not is_known or row.rebuild is None or row.rebuild.number != word.number:
        return
    if not word.failure and row.state in ("rebuilding", "broken"):
        transition.withdraw(REBUILDS, attempt=row.host_attempt)
        transition.change(rebuild=structs.replace(row.rebuild, failure=""), reason="")
        transition.end_active()
    elif row.state == "rebuilding" or (row.state == "broken" and word.is_active):
        _end_failed(transition, word.failure, is_active=word.is_active)


def on_rebuild_time_up(transition: Transition) -> None:
    row = transition.row
    assert row.rebuild is not None, "an instance that is rebuilt has a rebuild"
    assert row.host is not None, "an instance that is rebuilt has a host"
    if transition.now >= row.rebuild.ends_by:
        reason = "not rebuilt by its deadline"
    else:
        reason = (
            f"no message from the host within {transition.rules.time_to_build(row.host).total_seconds():g} s"
        )
    _end_failed(transition, reason, is_active=False)


def _end_failed(transition: Transition, failure: str, *, is_active: bool) -> None:
    rebuild = transition.row.rebuild
    assert rebuild is not None, "an instance that is rebuilt has a rebuild"
    transition.withdraw(REBUILDS, attempt=transition.row.host_attempt)
    transition.change(rebuild=structs.replace(rebuild, failure=failure), reason="")
    if is_active:
        transition.end_active()
    else:
        transition.end_broken(f"its rebuild failed: {failure}")
