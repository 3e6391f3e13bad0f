"""Decides which hosts are lost, and how each is recovered: pure, by the answers of schedulers.

A silent host is lost if its cell says so, too, and has been silent for long enough. A host that is lost alone is recovered at once: a campaign
empties it. Those that are lost with too many others, or with a whole domain, are held until a person has answered one question about them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import uuid5

from msgspec import structs

from bus.messages.build import InstanceState
from bus.messages.keeping import CampaignHost, CampaignId, CampaignState, CampaignWork, Movement
from bus.messages.moves import MoveInstance
from bus.messages.questions import PossibleAnswer, Question, QuestionId
from engine.flavors import InstanceId, RequestId
from engine.hosts import NODE, HostState, host_in_cell
from engine.inventories import Moment, ProviderId, Value
from keeper.core.campaigns import FOR_USER_MAX, GOING, staged, withdrawn
from keeper.core.policies import PolicyRule

# Lost hosts count against their limit for so long.
COUNTED_FOR = timedelta(hours=1)
GUESTS_AT_ONCE = 100
HELD_MAX = 1000
NAMED_MAX = 20


# One that has run for so long since it was started counts as whole.
WHOLE_AFTER = timedelta(hours=1)
# An order to start a guest that has shown nothing for so long has failed.
STARTED_WITHIN = timedelta(seconds=30)


class Restart(Value, frozen=True):
    """A guest that died, and was started again `tries` times in a row, the last time `at`."""

    instance: InstanceId
    tries: int
    at: Moment


def tries_of(known: Restart | None, died_at: datetime) -> int:
    """How often it was started again in a row."""
    return 0 if known is None or died_at - known.at > WHOLE_AFTER else known.tries


def next_try(
    told: InstanceState, known: Restart | None, most: int, now: datetime, rests_s: Sequence[float]
) -> Restart | None:
    """The try that is due now for a guest that died; None if none is: it rests, is being started, or was started often enough."""
    died_at = told.changed_at or now
    tries = tries_of(known, died_at)
    if tries >= most or now < died_at + timedelta(seconds=rests_s[min(tries, len(rests_s) - 1)]):
        return None
    if known is not None and known.at >= died_at and now < known.at + STARTED_WITHIN:
        return None
    return Restart(told.id, tries + 1, now)


def start_for(told: InstanceState, restart: Restart, most: int) -> MoveInstance:
    """The order to start a guest again. Two keepers that send it send the same one."""
    return MoveInstance(
        request_id=RequestId(uuid5(told.id, f"start {restart.tries} {told.sequence}")),
        instance=told.id,
        kind="start",
        source=host_in_cell(told.cell, told.host),
        for_user=f"restart {restart.tries} of {most}: it {told.reason}"[:FOR_USER_MAX],
    )


class Suspect(NamedTuple):
    """A silent host, what counts for it, and the domain or cell whose lost hosts are counted with it."""

    host: HostState
    rule: PolicyRule
    group: str


class Loss(NamedTuple):
    """Hosts that are lost. `why`: a person must decide on them, since..."""

    hosts: Sequence[Suspect]
    why: str = ""
    of: str = ""


def is_silent(host: HostState) -> bool:
    """Is it silent by all that can tell, and was not set down by anybody?"""
    return (
        not host.up
        and host.kind != NODE
        and host.setting.mode in ("up", "draining")
        and host.silent_since is not None
        and host.silent_in_cell
    )


def is_due(suspect: Suspect, now: datetime, soonest: timedelta) -> bool:
    since = suspect.host.silent_since or now
    return now - since >= max(timedelta(seconds=suspect.rule.after_s), soonest)


def losses(
    suspects: Sequence[Suspect],
    due: Sequence[Suspect],
    dead_domains: Mapping[ProviderId, str],
    before: Iterable[tuple[str, ProviderId]],
) -> list[Loss]:
    """The losses by which the hosts that are due are recovered or held. `suspects` are all that are silent. `dead_domains` has the domain of each
    of them that is silent as a whole; `before` are hosts that were lost within the hour, with their groups.
    """
    lost = {*before, *((each.group, each.host.id) for each in suspects)}
    counts = Counter(group for group, _ in lost)
    held: dict[str, str] = {}
    alone: list[Suspect] = []
    for each in due:
        most, count = each.rule.lost_max, counts[each.group]
        if count > most:
            held[each.group] = (
                f"{count} hosts of {each.group} were lost within an hour, and lost_max is {most}"
            )
        elif (domain := dead_domains.get(each.host.id)) and each.group not in held:
            held[domain] = f"all hosts of {domain} are silent"
        else:
            alone.append(each)
    found = [Loss((each,)) for each in alone]
    for of, why in held.items():
        members = [
            each
            for each in suspects
            if each.group == of or (each.group not in held and dead_domains.get(each.host.id) == of)
        ]
        found.append(Loss(members[:HELD_MAX], why, of))
    return found


def campaign_for(id_: CampaignId, name: str, loss: Loss, now: datetime, room_s: int) -> CampaignState:
    """The campaign that empties lost hosts. Their guests wait so long for room."""
    work = CampaignWork(
        kind="evacuate",
        hosts=tuple([each.host.name for each in loss.hosts]),
        fence_s=max(each.rule.fence_s for each in loss.hosts),
        by_policy=True,
        at_once=len(loss.hosts),
        guests_at_once=GUESTS_AT_ONCE,
        failures_max=len(loss.hosts) + 1,
        wait_s=room_s,
        reason="it is lost" if not loss.why else loss.why[:255],
    )
    return CampaignState(id=id_, name=name, work=work, by="keeper", asked_at=now)


def lost_host(suspect: Suspect) -> CampaignHost:
    host, rule = suspect.host, suspect.rule
    return CampaignHost(
        id=host.id,
        host=host.name,
        cell=host.cell,
        place=host.place,
        fence=rule.fence,
        unfenced=rule.unfenced,
        lost_at=host.silent_since,
    )


def held(host: CampaignHost, why: str, now: datetime) -> CampaignHost:
    return staged(host, "held", now, why)


def rehearsed(host: CampaignHost, guests: int, why: str, now: datetime) -> CampaignHost:
    """The host of which only is noted what would be done with it."""
    if not guests:
        what = "nothing: its policies let no guest leave"
    elif why:
        what = f"a person would be asked: {why}"
    else:
        off = (
            f"fenced by {host.fence}"
            if host.fence
            else "not fenced"
            if host.unfenced
            else "asked about first"
        )
        what = f"it would be {off}, and {guests} guests would be built anew elsewhere"
    return structs.replace(staged(host, "skipped", now, f"rehearsal: {what}"), left=guests)


def taken_over(movement: Movement, campaign: CampaignState, why: str, now: datetime) -> Movement:
    """A movement of another campaign from a host that is lost: this campaign sees to its end, if it goes on."""
    if movement.life in GOING:
        return structs.replace(movement, campaign=campaign.id)
    return withdrawn(movement, why, now) if movement.life == "planned" else movement


def question_about_all(campaign: CampaignState, loss: Loss, now: datetime) -> Question:
    """The one question about hosts that are lost together."""
    names = sorted(each.host.name for each in loss.hosts)
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return Question(
        id=QuestionId(uuid5(campaign.id, "all")),
        campaign=campaign.id,
        host_id=None,
        cell="",
        host=loss.of,
        text=f"Are these hosts lost? {loss.why}: {', '.join(names[:NAMED_MAX])}{more}.",
        choices=(
            PossibleAnswer(
                answer="evacuate",
                does="those that are still silent then, also those that fell silent meanwhile, are switched off by their fences, and their guests are built anew elsewhere",
            ),
            PossibleAnswer(
                answer="leave", does="nothing is done with them, and their guests stay as they are"
            ),
        ),
        asked_at=now,
    )
