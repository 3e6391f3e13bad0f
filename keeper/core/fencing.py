"""Hosts that must be off before their guests are built anew elsewhere: by a program, or by the word of a person.

fencing ──▶ fenced ──▶ emptying    the program ended well, nothing was heard since, and the host's cell knows that it is dead
   └──▶ asked ──▶ fenced           a person has made sure that it is off
          ├────▶ fencing           the program runs once more
          └────▶ failed            it is left as it is
"""

from datetime import datetime, timedelta
from uuid import uuid5

from msgspec import structs

from bus.messages.build import InstanceState
from bus.messages.cell import NodePower
from bus.messages.keeping import CampaignHost, CampaignState, CampaignWork
from bus.messages.questions import PossibleAnswer, Question, QuestionId, QuestionLife
from engine.hosts import HostState
from keeper.core.campaigns import staged

# So long after a fence has ended a beat may still be on its way, or clocks may differ.
BEAT_LATE = timedelta(seconds=5)
POWER_IS_BACK = "the node has its power again, or its instance is gone"


def begun(host: CampaignHost, work: CampaignWork, now: datetime) -> CampaignHost:
    """The host when its turn begins. A person who evacuates it without a fence has made sure that it is off; for keepers a policy says
    why it need not be.
    """
    if host.fence:
        return staged(host, "fencing", now)
    if work.by_policy and not host.unfenced:
        return staged(host, "asked", now, "no policy names a fence for it, or says why it needs none")
    return staged(host, "emptying", now)


def after_answer_to_all(
    host: CampaignHost, work: CampaignWork, answer: str, by: str, now: datetime
) -> CampaignHost:
    """The host that was held, after a person has answered the question about all."""
    if answer == "evacuate":
        return begun(host, work, now)
    return staged(host, "failed", now, f"{by or 'an operator'} left it: {host.reason}")


def after_fence(host: CampaignHost, program: str, why: str, now: datetime) -> CampaignHost:
    """The host after this program has ended: well, or for this reason not."""
    if why:
        return staged(host, "asked", now, why)
    return structs.replace(staged(host, "fenced", now), fenced_by=program)


def after_fenced(host: CampaignHost, told: HostState | None, now: datetime) -> CampaignHost:
    """The host that is said to be off: emptied as soon as its cell knows that it is dead. One that is heard is not off."""
    if told is None:
        return staged(host, "emptying", now)
    since = (host.stage_at or now) + BEAT_LATE
    if told.heard_at is not None and told.heard_at > since:
        return staged(host, "asked", now, f"{host.fenced_by} says that it is off, and it was heard since")
    if told.setting.mode != "dead" or told.told < told.setting.number:
        return host
    return structs.replace(staged(host, "emptying", now), epoch=told.setting.number)


def after_answer_of(host: CampaignHost, answer: str, by: str, now: datetime) -> CampaignHost:
    """The host after a person has answered the question about it."""
    match answer:
        case "off":
            return structs.replace(staged(host, "fenced", now), fenced_by=by or "an operator")
        case "again":
            return staged(host, "fencing", now)
        case _:
            return staged(
                host, "failed", now, f"it was not fenced, and {by or 'an operator'} left it: {host.reason}"
            )


def question_about_power(news: NodePower, told: InstanceState | None, now: datetime) -> Question:
    """The question about a node whose instance has lost its power. Nothing can be built anew: the disk is in the node."""
    guest = f"instance {news.instance}"
    if told is not None:
        guest = f"instance {told.name or told.id} of project {told.project}"
    question = Question(
        id=QuestionId(uuid5(news.node, f"power {news.number}")),
        campaign=None,
        host_id=news.node,
        cell=news.cell,
        host=news.name,
        text=f"What becomes of node {news.name}? On it lives {guest}: {news.words}. It can be built nowhere else, since its disk is in the node.",
        choices=(
            PossibleAnswer(
                answer="leave",
                does="nothing is done with node and instance, whose project sees why it does not run; `moor node power on` switches a node on",
            ),
        ),
        asked_at=now,
    )
    return question if news.words else closed(question, "void", now, reason=POWER_IS_BACK)


def closed(
    question: Question, life: QuestionLife, now: datetime, *, answer: str = "", by: str = "", reason: str = ""
) -> Question:
    return structs.replace(question, life=life, answer=answer, by=by, reason=reason, ended_at=now)


def question_about(campaign: CampaignState, host: CampaignHost) -> Question:
    """The question about a host that may not be off. A host that is asked about again has another one."""
    asked_at = host.stage_at
    assert asked_at is not None, "it came to this stage at some time"
    again = (PossibleAnswer(answer="again", does=f"{host.fence} runs once more"),) if host.fence else ()
    return Question(
        id=QuestionId(uuid5(campaign.id, f"{host.id} {asked_at.isoformat()}")),
        campaign=campaign.id,
        host_id=host.id,
        cell=host.cell,
        host=host.host,
        text=f"Is host {host.host} off? Its guests are to be built anew elsewhere, and would run twice if it is not. {host.reason}",
        choices=(
            PossibleAnswer(
                answer="off",
                does="you have made sure that it is off: it is set dead, and its guests are built anew elsewhere",
            ),
            *again,
            PossibleAnswer(answer="leave", does="nothing is done with it, and its guests stay as they are"),
        ),
        asked_at=asked_at,
    )
