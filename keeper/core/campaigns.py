"""The stages of a campaign's hosts and the lives of its movements, by the answers of schedulers.

waiting ──▶ emptying ──▶ done                     drain, evacuate
held ──▶ fencing, emptying, failed                lost with many others: a person answers
   └──▶ fencing ──▶ fenced ──▶ emptying           evacuate with a fence
           └─▶ asked ──┘  a person answers
                 └─────▶ hook ──▶ returning ──▶ done      restart
giving ──▶ done                                   balance
any of these ──▶ failed, skipped

planned ──▶ granted ──▶ moving ──▶ done
   ▲───────────┴───────────┤ the order was refused, or the move failed; after three failures: given_up
planned ──▶ withdrawn      the campaign has ended, or the instance has left by itself
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import uuid5

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildRejected, InstanceDetails, InstancesFound, InstanceState, Move, MoveKind
from bus.messages.hosts import HostUse
from bus.messages.keeping import (
    PLANNED_MAX,
    CampaignHost,
    CampaignState,
    CampaignWork,
    HostStage,
    Movement,
    MovementId,
    MovementLife,
)
from bus.messages.moves import MOVE_LIMITS, MoveInstance, MoveWait, is_to_wait_again
from bus.messages.planning import DrainedInstance
from engine.hosts import HostMode, HostState, host_in_cell
from engine.inventories import INTEGER_MAX
from engine.refusals import TOGETHER_MAX

FAILURES_MAX = 3
# A plan says so of an instance that cannot move just now.
BUSY = "busy: "
FENCE: tuple[HostStage, ...] = ("fencing", "asked", "fenced")
OUT: tuple[HostStage, ...] = (*FENCE, "emptying", "giving", "hook", "returning")
WAITING: tuple[HostStage, ...] = ("waiting",)
EMPTYING: tuple[HostStage, ...] = ("emptying", "giving")
HELD: tuple[HostStage, ...] = ("held",)
OPEN_STAGES: tuple[HostStage, ...] = (*WAITING, *HELD, *OUT)
PLANNED: tuple[MovementLife, ...] = ("planned",)
GRANTED: tuple[MovementLife, ...] = ("granted",)
MOVING: tuple[MovementLife, ...] = ("moving",)
GOING: tuple[MovementLife, ...] = (*GRANTED, *MOVING)
OPEN: tuple[MovementLife, ...] = (*PLANNED, *GOING)
SECONDS_MAX = 30 * 86_400
# As `UserName` allows.
FOR_USER_MAX = 100

# The instances on a host, as schedulers tell of them.
Guests = Sequence[tuple[InstanceState, InstanceDetails]]


def wrong_work(work: CampaignWork) -> tuple[str, object, str] | None:
    """The field that is wrong with what a campaign is to do, its value, and why; None if it is right."""
    filters, balances = bool(work.cell or work.place or work.mode), work.kind == "balance"
    bounds = (
        *(("at_once", 1, INTEGER_MAX), ("guests_at_once", 1, INTEGER_MAX), ("failures_max", 1, INTEGER_MAX)),
        *(("canary", 0, INTEGER_MAX), ("wait_s", 0, SECONDS_MAX), ("hook_s", 1, SECONDS_MAX)),
        *(("whole_s", 1, SECONDS_MAX), ("fence_s", 1, SECONDS_MAX)),
        *(("moves_max", 1, PLANNED_MAX), ("rest_s", 0, SECONDS_MAX)),
    )
    checks = (
        *(
            (
                not least <= getattr(work, field) <= most,
                field,
                getattr(work, field),
                f"from {least} to {most}",
            )
            for field, least, most in bounds
        ),
        (
            bool(work.hosts) and filters,
            "hosts",
            work.hosts[:1],
            "name hosts, or choose them by cell, place and mode, not both",
        ),
        (
            not work.hosts and not filters and not balances,
            "hosts",
            "",
            "name hosts, or choose them by cell, place or mode",
        ),
        (balances is not bool(work.goal), "goal", work.goal, "a balance has a goal, and nothing else has"),
        *(
            (
                balances and bool(value),
                field,
                value,
                "a balance is of all hosts of the cloud, a cell or a domain",
            )
            for field, value in (("hosts", work.hosts[:1]), ("mode", work.mode), ("to", work.to[:1]))
        ),
        (
            (work.kind == "restart") is not bool(work.hook),
            "hook",
            work.hook,
            "a restart runs a hook, and nothing else does",
        ),
        (
            bool(work.fence) and work.kind != "evacuate",
            "fence",
            work.fence,
            "only an evacuation switches hosts off before",
        ),
        (
            work.by_policy and work.kind != "evacuate",
            "by_policy",
            work.by_policy,
            "only of a lost host do guests leave by policy",
        ),
    )
    return next(((f"work.{field}", value, why) for is_wrong, field, value, why in checks if is_wrong), None)


def rejected(field: str, value: object, reason: str) -> BuildRejected:
    """The answer to an order or a question that is wrong."""
    return BuildRejected(request_id=None, field=field, value=str(value), reason=reason)


# Hosts


def hosts_to_begin(
    work: CampaignWork, out: int, waiting: Sequence[CampaignHost], done: int
) -> Sequence[CampaignHost]:
    """The hosts whose turn it is, of those that wait, in the order of their turns. `done` have ended well."""
    most = work.at_once - out
    if done < work.canary:
        most = min(most, work.canary - done - out)
    return waiting[: max(most, 0)]


def staged(host: CampaignHost, stage: HostStage, now: datetime, reason: str = "") -> CampaignHost:
    """The host at this stage."""
    return structs.replace(
        host,
        stage=stage,
        stage_at=now,
        reason=reason,
        began_at=host.began_at or (None if stage == "waiting" else now),
        ended_at=None if stage in OPEN_STAGES else now,
    )


def is_at_stage_of(host: CampaignHost, other: CampaignHost) -> bool:
    """Is it at the same stage, and since the same time?"""
    return (host.stage, host.stage_at) == (other.stage, other.stage_at)


def why_not_emptied(work: CampaignWork, host: CampaignHost, told: HostState | None) -> str:
    """Why a host is not emptied any more: a person's order for it wins. Empty if it is, or if schedulers do not know it."""
    if told is None:
        return ""
    by = f" by {told.setting.by}" if told.setting.by else ""
    was_set = f"it was set {told.setting.mode}{by}"
    if work.kind != "evacuate":
        return "" if told.setting.mode == "draining" else was_set
    if host.epoch is not None and (told.setting.mode, told.setting.number) != ("dead", host.epoch):
        return f"{was_set} since it was fenced"
    return "it is up again" if told.up else ""


class Emptying(NamedTuple):
    """A host that is emptied, as it is after its guests were listed; the movements that are new; and those that are withdrawn, with
    the reasons.
    """

    host: CampaignHost
    planned: Sequence[Movement] = ()
    withdrawn: Mapping[MovementId, str] = {}


def after_listing(
    campaign: CampaignState,
    host: CampaignHost,
    known: Sequence[Movement],
    told: HostState | None,
    guests: Guests | None,
    *,
    now: datetime,
    kept: str = "",
    claimed: str = "",
    claimed_s: float = 0,
) -> Emptying:
    """What follows from a look at a host that is emptied. `known` are its movements; `guests` is None if they were not listed now. `kept`
    says which others stay there by policy. `claimed` says what placement has given of it though no guest is there: one may be on its way
    there, or may come back since its move is not confirmed. That is waited for, but not longer than `claimed_s`.
    """
    if guests is not None and (why := why_not_emptied(campaign.work, host, told)):
        ends = {each.id: why for each in known if each.life == "planned"}
        goes_on = any(each.life in GOING for each in known)
        return Emptying(host if goes_on else staged(host, "failed", now, why), withdrawn=ends)
    moves = any(each.life in OPEN for each in known)
    there = {each.id for each, _ in guests or ()}
    have = {each.instance for each in known if each.life in OPEN or each.life == "given_up"}
    others = [each for each in guests or () if each[0].id not in have]
    planned = planned_for(campaign, host, others, now) if campaign.life in ("running", "paused") else []
    gone: dict[MovementId, str] = {}
    if guests is not None:
        left = [each for each in known if each.instance not in there]
        gone = {each.id: "it has left its host by itself" for each in left if each.life == "planned"}
        # Those that were planned by what was known before are planned anew.
        gone |= {
            each.id: "its host was fenced since"
            for each in known
            if each.life == "planned" and each.epoch != host.epoch
        }
        # One that was given up, and has left since by an order of a person, does not stay.
        known = [each for each in known if each.instance in there or each.life not in ("planned", "given_up")]
    lives = Counter(each.life for each in (*known, *planned))
    stays = [each.reason for each in known if each.life == "given_up"]
    seen = structs.replace(
        host,
        left=sum(lives[each] for each in OPEN),
        moved=lives["done"],
        stay=len(stays),
        reason=stays[0] if stays else "",
    )
    # A cell that does not know yet that the host is draining may begin a move to it.
    may_come = told is not None and campaign.work.kind != "evacuate" and told.told < told.setting.number
    if moves or seen.left or guests is None or may_come:
        after = seen
    elif others:
        after = staged(seen, "skipped", now, f"its campaign is {campaign.life}")
    elif stays:
        after = staged(seen, "failed", now, f"{seen.stay} guests stay: {seen.reason}")
    elif kept or not claimed:
        after = staged(seen, "hook" if campaign.work.kind == "restart" else "done", now, kept)
    elif now < _empty_since(host, known, now) + timedelta(seconds=claimed_s):
        after = structs.replace(seen, reason=claimed)
    else:
        # The guests of a lost host are elsewhere all the same.
        after = staged(seen, "done" if campaign.work.kind == "evacuate" else "failed", now, claimed)
    return Emptying(after, planned, gone)


def claimed_on(use: HostUse) -> str:
    """What placement has given of a host, for people; empty if nothing."""
    amounts = [f"{each.used} {name}" for name, each in sorted(use.classes.items()) if each.used]
    return f"no guest is there, but of it are claimed {', '.join(amounts)}" if amounts else ""


def _empty_since(host: CampaignHost, known: Sequence[Movement], now: datetime) -> datetime:
    """When it began to be emptied, or its last guest left."""
    ends = [each.ended_at for each in known if each.ended_at is not None]
    return max([host.stage_at or now, *ends])


def mode_when_done(work: CampaignWork) -> HostMode | None:
    """The mode to which a host is set when the campaign is done with it; None: it stays as it is."""
    match work.kind:
        case "restart":
            return "up"
        case "drain" if work.then == "down":
            return "down"
        case _:
            return None


def returned(host: CampaignHost, told: HostState | None, work: CampaignWork, now: datetime) -> CampaignHost:
    """The host whose hook has run: done if it was heard since and is whole, failed if that takes too long."""
    since = host.stage_at or now
    is_heard = told is not None and told.heard_at is not None and told.heard_at > since
    if told is not None and is_heard and not (told.must_clean or told.silent_since or told.report_refused):
        return staged(host, "done", now)
    if now - since < timedelta(seconds=work.whole_s):
        return host
    why = "it was not heard" if not is_heard else told.report_refused if told else ""
    return staged(
        host, "failed", now, f"not whole {work.whole_s} s after its hook: {why or 'it has to clean up'}"
    )


def ends_as(campaign: CampaignState, stages: Mapping[str, int]) -> CampaignState:
    """The campaign with the life that follows from the stages of its hosts."""
    if campaign.life not in ("running", "paused"):
        return campaign
    failed, most = stages.get("failed", 0), campaign.work.failures_max
    canary = min(campaign.work.canary, sum(stages.values()))
    if failed and stages.get("done", 0) < canary:
        return structs.replace(campaign, life="stopped", reason=f"one of the first {canary} hosts has failed")
    if any(stages.get(each) for each in OPEN_STAGES) and failed < most:
        return campaign
    if failed >= most and any(stages.get(each) for each in OPEN_STAGES):
        return structs.replace(
            campaign, life="stopped", reason=f"{failed} hosts have failed (failures_max {most})"
        )
    return structs.replace(campaign, life="done", reason=f"{failed} hosts have failed" if failed else "")


# Guests


def is_guest(told: InstanceState) -> bool:
    """Is this instance on the host that it names? One in error is there only if it keeps its host."""
    return told.state != "deleted" and (told.state != "error" or told.keeps_share or told.rebuild is not None)


def planned_for(
    campaign: CampaignState,
    host: CampaignHost,
    guests: Guests,
    now: datetime,
) -> list[Movement]:
    """A movement for each guest of a host."""
    return [
        Movement(
            id=MovementId(uuid5(campaign.id, str(each.id))),
            instance=each.id,
            campaign=campaign.id,
            cause=f"campaign {campaign.name}",
            kind="evacuate" if campaign.work.kind == "evacuate" else "live-migrate",
            epoch=host.epoch,
            cell=host.cell,
            host=host.host,
            place=host.place,
            name=each.name,
            project=each.project,
            group=told.group,
            together=told.policy == "affinity",
            priority=told.priority,
            asked_at=now,
        )
        for each, told in guests
    ]


def kind_of(work: CampaignWork, movement: Movement) -> MoveKind:
    """How it leaves: first live, and after a failure stopped meanwhile."""
    if work.kind == "evacuate":
        return "evacuate"
    return "migrate" if movement.failures else "live-migrate"


def as_planned(
    movement: Movement, plan: DrainedInstance, work: CampaignWork, now: datetime, *, is_alone: bool
) -> Movement:
    """The movement with the host that a plan gives it; or with the reason why it waits, or is given up. A guest without a host fails
    only if nothing else of its campaign moves (`is_alone`): what moves may make room.
    """
    kind = kind_of(work, movement)
    if plan.to:
        return structs.replace(movement, to=plan.to, to_place=plan.place, kind=kind, reason="")
    movement = structs.replace(movement, to="", to_place="", kind=kind)
    if plan.reason.startswith(BUSY):
        return structs.replace(movement, reason=plan.reason.removeprefix(BUSY))
    if may_wait(movement, work, now):
        return structs.replace(movement, reason=f"no room: {plan.reason}")
    return failed(movement, plan.reason, now) if is_alone else structs.replace(movement, reason=plan.reason)


def may_wait(movement: Movement, work: CampaignWork, now: datetime) -> bool:
    return waits_s(movement, work, now) > 0


def waits_s(movement: Movement, work: CampaignWork, now: datetime) -> int:
    """How many seconds it may wait for room yet."""
    return round(((movement.asked_at or now) + timedelta(seconds=work.wait_s) - now).total_seconds())


def failed(movement: Movement, reason: str, now: datetime) -> Movement:
    """The movement after a try that failed: it is planned anew, or given up; a step of a balance is tried once."""
    failures = movement.failures + 1
    if failures < FAILURES_MAX and not movement.wish:
        return structs.replace(
            movement, life="planned", failures=failures, reason=reason, to="", to_place="", request_id=None
        )
    return structs.replace(movement, life="given_up", failures=failures, reason=reason, ended_at=now)


def again(movement: Movement, reason: str) -> Movement:
    """The movement, to be planned anew: nothing has failed."""
    return structs.replace(movement, life="planned", reason=reason, to="", to_place="", request_id=None)


def withdrawn(movement: Movement, reason: str, now: datetime) -> Movement:
    return structs.replace(movement, life="withdrawn", reason=reason, ended_at=now)


def order_for(unit: Sequence[Movement], work: CampaignWork, now: datetime) -> MoveInstance:
    """The order by which the movements of a unit are made. If a group has more members than one order moves, the schedulers choose
    which go first, and keep room for the others.
    """
    first, *others = unit
    assert first.request_id is not None, "what is granted has a request"
    may_have_more = first.together and len(unit) == TOGETHER_MAX
    return MoveInstance(
        request_id=first.request_id,
        instance=first.instance,
        kind=first.kind,
        hosts=(host_in_cell(first.cell, first.to),) if first.to else work.to,
        confirm_s=0,
        together=() if may_have_more else tuple([each.instance for each in others]),
        with_group=may_have_more,
        # An evacuation that says nothing waits a day; this one would wait for room on the one host that was chosen.
        wait=MoveWait(for_s=0 if first.to else max(waits_s(first, work, now), 1)),
        for_user=first.cause[:FOR_USER_MAX],
        source=host_in_cell(first.cell, first.host),
        source_epoch=first.epoch,
    )


def after_answer(movement: Movement, answer: Message, now: datetime) -> Movement:
    """The movement after its order was answered."""
    if movement.life != "granted":
        return movement
    match answer:
        case InstancesFound():
            return structs.replace(movement, life="moving")
        case BuildRejected(field=field, reason=reason) if field in MOVE_LIMITS:
            return again(movement, reason)
        case BuildRejected(field="source", reason=reason):
            return withdrawn(movement, f"it has left its host by itself: {reason}", now)
        case BuildRejected(reason=reason):
            return failed(movement, reason, now)
        case _:
            return movement


def after_look(movement: Movement, told: InstanceState | None, now: datetime) -> Movement:
    """The movement after its instance was looked at. An order of a person for the instance wins."""
    if movement.life != "moving":
        return movement
    if told is None or told.state in ("deleting", "deleted"):
        return withdrawn(movement, "the instance was deleted", now)
    move = told.move
    if move is not None and move.request_id == movement.request_id:
        return _after_move(movement, told, move, now)
    if (told.cell, told.host) != (movement.cell, movement.host):
        return withdrawn(movement, f"another order has moved it to {told.host or 'no host'}", now)
    return again(movement, "another order came first")


def _after_move(movement: Movement, told: InstanceState, move: Move, now: datetime) -> Movement:
    if is_to_wait_again(told, now) or not (move.outcome or told.state == "moved"):
        return movement
    if move.outcome in ("failed", "aborted", "reverted"):
        why = [move.failure or move.outcome, *(f"{each.host}: {each.reason}" for each in told.failures)]
        return failed(movement, "; ".join(why), now)
    return structs.replace(movement, life="done", to=told.host, reason="", ended_at=now)
