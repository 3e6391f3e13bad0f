"""Finds out which hosts Nova chose for the copied requests, compares them with ours, and notes both.

Nova's scheduler claims before it answers: so what an instance holds in placement is Nova's choice. Placement is asked soon after the
request, and then ever more seldom. An instance that holds nothing for long got no host of Nova; its fault in Nova's API says why, and
says so earlier.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from msgspec import Struct, structs

from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId, ResourceAmount
from kit.errors import Operational
from kit.metrics import Labels, Readings
from nova_bridge.cloud import ServerSeen
from nova_bridge.shadow.choosing import Held, ShadowChoice, ShadowChooser
from nova_bridge.shadow.notes import ShadowNote, compare_choices, in_words, pair_hosts
from scheduler_worker.metrics import SHADOW_NOTES

log = logging.getLogger(__name__)

# Placement is asked about one request at these multiples of look_s, and then at the last one again and again.
LOOKS = (1, 1, 1, 2, 2, 4, 8)
# From this look on, Nova's API is asked about instances that hold nothing.
API_FROM_LOOK = 3
# After so many looks Nova has probably refused: our choice takes no room of later requests any more.
NEW_LOOKS = 5
REASON_MAX = 2_000
# Soon enough to see a host before its instance moves on.
LOOK_AT_S = 1.0
# Nova's choices that are waited for at once; then the oldest is noted without. Of each is kept how every host looked.
WAITING_MAX = 300
# How Nova words it, in lower case.
NO_VALID_HOST = "no valid host"
# An error from before the request is of something else. The clocks of two machines may differ by less than this.
CLOCKS_DIFFER_S = 60.0


# None if Nova has no such instance. Raises `Operational` if Nova does not answer.
AsksServer = Callable[[InstanceId], Awaitable[ServerSeen | None]]
AddNotes = Callable[[Sequence[ShadowNote]], None]


class _Followed(Struct, eq=False):
    """A choice whose counterpart is not known yet. `found` are Nova's hosts by instance, `after_s` says when each was seen, and
    `held` what the instance held then. `faults` say why Nova had no host, and `ended` why nobody knows which one it had.
    """

    choice: ShadowChoice
    look_at: datetime
    looks: int = 0
    found: dict[ConsumerId, ProviderId] = {}
    after_s: dict[ConsumerId, float] = {}
    held: dict[ConsumerId, Sequence[ResourceAmount]] = {}
    faults: dict[ConsumerId, str] = {}
    ended: dict[ConsumerId, str] = {}

    @property
    def missing(self) -> list[ConsumerId]:
        ids = [ConsumerId(each) for each in self.choice.instances]
        return [each for each in ids if each not in self.found | self.faults | self.ended]


class ShadowFollower:
    """`add_notes` keeps notes. Without `asks_server`, only what instances hold is known of Nova."""

    def __init__(
        self,
        chooser: ShadowChooser,
        add_notes: AddNotes,
        *,
        wait_s: float,
        look_s: float,
        clock: Callable[[], datetime],
        asks_server: AsksServer | None = None,
    ) -> None:
        self._chooser = chooser
        self._add_notes = add_notes
        self._wait_s = wait_s
        self._look_s = look_s
        self._clock = clock
        self._asks_server = asks_server
        self._followed: list[_Followed] = []
        self._noted = Counter[Labels]()

    @property
    def readings(self) -> Readings:
        return (SHADOW_NOTES.numbers(self._noted),)

    @property
    def under_way(self) -> int:
        return len(self._followed)

    def follow(self, choices: Sequence[ShadowChoice]) -> None:
        """Find out what Nova chose for these."""
        now = self._clock()
        for choice in choices:
            if choice.stays:
                reason = "a rebuild stays on its host: nothing is claimed for it"
                self._note(
                    [self._noted_as(choice, number, reason) for number in range(len(choice.instances))]
                )
            else:
                self._followed.append(_Followed(choice, now))
        while len(self._followed) > WAITING_MAX:
            self._end(self._followed.pop(0), why_not="too many requests wait for Nova's choice")

    async def look(self) -> None:
        """Ask placement about all requests whose time has come. Raises `Operational` if it does not answer."""
        now = self._clock()
        due = [each for each in self._followed if each.look_at <= now]
        if not due:
            return
        await self._look_at(due)
        for each in due:
            each.looks += 1
            pause = LOOKS[min(each.looks, len(LOOKS)) - 1] * self._look_s
            each.look_at = now + timedelta(seconds=pause)
            if each.looks == NEW_LOOKS:
                self._chooser.drop(set(each.missing))
            if each.missing and each.looks >= API_FROM_LOOK:
                await self._ask_nova(each)
        # Others may have been ended meanwhile.
        due = [each for each in due if each in self._followed]
        over = [each for each in due if not each.missing or self._is_over(each)]
        self._followed = [each for each in self._followed if each not in over]
        for each in over:
            self._end(each)

    async def look_at_new(self) -> None:
        """Ask placement about the requests whose choices take room in the picture. Raises `Operational` if it does not answer."""
        await self._look_at([each for each in self._followed if each.looks < NEW_LOOKS])

    def end_all(self, why: str) -> None:
        """The worker stops: note what is known."""
        followed, self._followed = self._followed, []
        for each in followed:
            self._end(each, why_not=why)

    async def _look_at(self, some: Sequence[_Followed]) -> None:
        missing = list(dict.fromkeys(id_ for each in some for id_ in each.missing))
        held = await self._chooser.held_by(missing)
        for each in some:
            self._take(each, held)

    def _take(self, one: _Followed, held: Held) -> None:
        now = self._clock()
        seen: set[ConsumerId] = set()
        for id_ in one.missing:
            host = self._chooser.chosen_host(one.choice, held.get(id_, ()))
            if host is not None:
                one.found[id_] = host
                one.held[id_] = held[id_]
                one.after_s[id_] = (now - one.choice.copied.at).total_seconds()
                seen.add(id_)
        # Nova's claim counts in the picture, or will soon.
        self._chooser.drop(seen)

    async def _ask_nova(self, one: _Followed) -> None:
        if self._asks_server is None:
            return
        for id_ in one.missing:
            try:
                server = await self._asks_server(InstanceId(id_))
            except Operational as problem:
                log.info("Nova's API does not say how instance %s ended: %s", id_, problem)
                return
            if server is None:
                one.ended[id_] = "Nova has no such instance any more"
            elif server.fault and not _is_of_before(server, one.choice.copied.at):
                if NO_VALID_HOST in server.fault.lower():
                    one.faults[id_] = server.fault
                else:
                    one.ended[id_] = f"it ended in error before its host was seen: {server.fault}"

    def _is_over(self, one: _Followed) -> bool:
        return (self._clock() - one.choice.copied.at).total_seconds() >= self._wait_s

    # Notes

    def _end(self, one: _Followed, *, why_not: str = "") -> None:
        """Note a request with what Nova chose. `why_not`: its choice was not waited for."""
        choice = one.choice
        ids = [ConsumerId(each) for each in choice.instances]
        self._chooser.drop(set(ids))
        novas = [one.found.get(id_) for id_ in ids]
        if one.ended:
            why_not = next(iter(one.ended.values()))
        if why_not and (one.missing or one.ended):
            self._note([self._noted_as(choice, number, why_not) for number in range(len(ids))])
            return
        ours: list[ProviderId | None] = [each.choice.share.host for each in choice.chosen]
        ours = ours or [None] * len(ids)
        notes = []
        for number, (id_, pair) in enumerate(zip(ids, pair_hosts(ours, novas), strict=True)):
            compared = compare_choices(pair, choice.views, choice.views_without)
            why = ""
            if compared.filter and pair.nova is not None:
                why = self._chooser.reason_against(choice, pair.nova, one.held)
            draft = choice.draft_note(number)
            note = structs.replace(
                draft,
                verdict=compared.verdict,
                reason=in_words(compared, pair, self._chooser.name_of, why_filtered=why)[:REASON_MAX],
                ours="" if pair.ours is None else self._chooser.name_of(pair.ours),
                refusal=draft.refusal[:REASON_MAX],
                nova="" if pair.nova is None else self._chooser.name_of(pair.nova),
                nova_reason="" if pair.nova is not None else self._why_none(one, id_),
                nova_after_s=one.after_s.get(id_),
                filter=compared.filter,
                weighed=compared.weighed,
            )
            notes.append(note)
        self._note(notes)

    def _why_none(self, one: _Followed, id_: ConsumerId) -> str:
        if fault := one.faults.get(id_):
            return fault[:REASON_MAX]
        return f"it holds nothing of any host {self._wait_s:g} s after its request"

    def _noted_as(self, choice: ShadowChoice, number: int, reason: str) -> ShadowNote:
        return structs.replace(choice.draft_note(number), reason=reason[:REASON_MAX])

    def _note(self, notes: Sequence[ShadowNote]) -> None:
        try:
            self._add_notes(notes)
        except OSError as problem:
            # Shadow mode goes on: the next ones may be kept again.
            log.error("%d notes of shadow mode are lost: %s", len(notes), problem)  # noqa: TRY400
            self._noted[("lost",)] += len(notes)
            return
        for each in notes:
            self._noted[(each.verdict,)] += 1


def _is_of_before(server: ServerSeen, at: datetime) -> bool:
    return server.fault_at is not None and (at - server.fault_at).total_seconds() > CLOCKS_DIFFER_S
