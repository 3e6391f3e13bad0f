"""A keeper's questions and orders to schedulers, as any client may send them: about instances, hosts and room. Each is about many at once."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID, uuid5

from msgspec import structs

from bus.message import Message
from bus.messages.build import DIED, AskInstances, BuildRejected, InstancesFound, InstanceState
from bus.messages.catalog import AskFlavors, FlavorsFound
from bus.messages.hosts import (
    AggregatesFound,
    AskAggregates,
    AskHosts,
    HostSet,
    HostsFound,
    HostUse,
    SetHost,
)
from bus.messages.keeping import CAMPAIGN_HOSTS_MAX, CampaignHost, CampaignState, CampaignWork
from bus.messages.planning import AskDrain, DrainedInstance, DrainFound
from bus.messages.policies import PolicyScope
from bus.messages.projects import AskGroups, GroupsFound, GroupState
from engine.flavors import InstanceId
from engine.hosts import HostMode, HostState, host_in_cell
from engine.inventories import GroupId, ProviderId
from keeper.core.campaigns import FOR_USER_MAX, Guests, is_guest
from kit.errors import WrongAnswer
from kit.parts import batches_of

# One question is about so many instances; and so many are asked at once about the guests of a host each.
ASKED_MAX = 200
LISTED_MAX = 50
HOSTS_PAGE = 500
OF_FORGOTTEN = UUID("5b0a9d1e-8f42-4f0c-9d37-6d2f1c4a7e55")

K = TypeVar("K")
M = TypeVar("M", bound=Message)
AskAll = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]


def named(host: CampaignHost) -> str:
    return host_in_cell(host.cell, host.host)


def forgotten(cell: str, host: str) -> HostState:
    """A host of which schedulers know nothing. Its id follows from its name."""
    return HostState(id=ProviderId(uuid5(OF_FORGOTTEN, f"{cell}/{host}")), name=host, cell=cell, up=False)


class Schedulers:
    """Asks schedulers. An answer of another kind than asked for is a `WrongAnswer`, and so is none."""

    def __init__(self, ask_all: AskAll) -> None:
        self.ask_all = ask_all

    async def _asked(self, questions: Sequence[Message], kind: type[M]) -> list[M]:
        answers = await self.ask_all(questions)
        if wrong := [each for each in answers if not isinstance(each, kind)]:
            raise WrongAnswer(f"a scheduler answered a keeper by {wrong[0]!r}")
        return [each for each in answers if isinstance(each, kind)]

    async def _pages(self, questions: Mapping[K, Any], kind: type[M]) -> dict[K, list[M]]:
        """All pages of the answers to these questions."""
        found: dict[K, list[M]] = {key: [] for key in questions}
        while questions:
            pages: Sequence[Any] = await self._asked([*questions.values()], kind)
            for key, page in zip(questions, pages, strict=True):
                found[key].append(page)
            asked = zip(questions.items(), pages, strict=True)
            questions = {
                key: structs.replace(question, after=page.next)
                for (key, question), page in asked
                if page.next
            }
        return found

    async def instances(self, ids: Sequence[InstanceId]) -> dict[InstanceId, InstanceState]:
        """These instances, as far as there are any."""
        some = enumerate(batches_of(ids, ASKED_MAX))
        questions = {number: AskInstances(instances=tuple(each), limit=ASKED_MAX) for number, each in some}
        pages = await self._pages(questions, InstancesFound)
        return {each.id: each for some in pages.values() for page in some for each in page.instances}

    async def with_details(self, *ids: InstanceId) -> Guests:
        """These instances with their details, as far as there are any."""
        (page,) = await self._asked((AskInstances(instances=ids, limit=ASKED_MAX),), InstancesFound)
        return [*zip(page.instances, page.details, strict=True)]

    async def died(self) -> Guests:
        """The instances that have died on their hosts, and are stopped."""
        question = AskInstances(died=True, limit=ASKED_MAX)
        (pages,) = (await self._pages({(): question}, InstancesFound)).values()
        told = [each for page in pages for each in zip(page.instances, page.details, strict=True)]
        return [each for each in told if each[0].state == "stopped" and each[0].reason.startswith(DIED)]

    async def guests_on(self, names: Sequence[str], enough: int | None = None) -> dict[str, Guests]:
        """The guests of each of these hosts; of the first hosts only, if these have `enough`."""
        found: dict[str, Guests] = {}
        for some in batches_of(names, LISTED_MAX):
            questions = {each: AskInstances(host=each, living=True, limit=ASKED_MAX) for each in some}
            for name, pages in (await self._pages(questions, InstancesFound)).items():
                told = [each for page in pages for each in zip(page.instances, page.details, strict=True)]
                found[name] = [each for each in told if is_guest(each[0])]
            if enough is not None and sum(map(len, found.values())) >= enough:
                break
        return found

    async def hosts_called(self, names: Collection[str]) -> dict[str, Sequence[HostState]]:
        """The hosts that have each of these names."""
        found = await self._asked([AskHosts(name=each) for each in names], HostsFound)
        return {name: page.hosts for name, page in zip(names, found, strict=True)}

    async def hosts_of(self, hosts: Collection[CampaignHost]) -> dict[ProviderId, HostState]:
        """The states of these hosts, as far as schedulers know them."""
        called = await self.hosts_called([named(each) for each in hosts])
        wanted = {each.id for each in hosts}
        return {each.id: each for some in called.values() for each in some if each.id in wanted}

    async def hosts_for(self, work: CampaignWork) -> list[HostState]:
        """The hosts that have what this work chooses them by: all, or more than a campaign may be over."""
        is_up = work.kind != "evacuate"
        question: AskHosts | None = AskHosts(
            cell=work.cell, place=work.place, mode=work.mode, kind="hypervisor", up=is_up, limit=HOSTS_PAGE
        )
        found: list[HostState] = []
        while question is not None and len(found) <= CAMPAIGN_HOSTS_MAX:
            (page,) = await self._asked((question,), HostsFound)
            found += page.hosts
            question = structs.replace(question, after=page.next) if page.next else None
        return found

    async def down_hosts(self) -> list[HostState]:
        """All hypervisors that are not up, of nodes none."""
        return await self._all_hosts(AskHosts(kind="hypervisor", up=False, limit=HOSTS_PAGE))

    async def hosts_in(self, *, cell: str = "", place: str = "") -> list[HostState]:
        """All hypervisors; of a cell or a domain alone, if one is named."""
        return await self._all_hosts(AskHosts(cell=cell, place=place, kind="hypervisor", limit=HOSTS_PAGE))

    async def loads_in(self, *, cell: str = "", place: str = "") -> list[tuple[HostState, HostUse]]:
        """All hypervisors as `hosts_in` has them, with what they have and what of it is used, if placement knows them."""
        question = AskHosts(cell=cell, place=place, kind="hypervisor", limit=HOSTS_PAGE)
        (pages,) = (await self._pages({(): question}, HostsFound)).values()
        told = [each for page in pages for each in zip(page.hosts, page.uses, strict=True)]
        return [(host, use) for host, use in told if use.classes]

    async def loads_called(self, names: Collection[str]) -> list[tuple[HostState, HostUse]]:
        """The hosts that have these names, with what they have and what of it is used."""
        found = await self._asked([AskHosts(name=each) for each in names], HostsFound)
        return [each for page in found for each in zip(page.hosts, page.uses, strict=True)]

    async def groups(self) -> dict[GroupId, GroupState]:
        """All server groups, without their members."""
        (pages,) = (await self._pages({(): AskGroups(limit=ASKED_MAX)}, GroupsFound)).values()
        return {each.id: each for page in pages for each in page.groups}

    async def hosts_under(self, scope: PolicyScope, of: str) -> list[HostState] | None:
        """The hypervisors that a policy of this scope is for, none of projects and flavors; or None if there is no such thing."""
        match scope:
            case "cloud":
                return await self.hosts_in()
            case "cell":
                return await self.hosts_in(cell=of) or None
            case "domain":
                return await self.hosts_in(place=of) or None
            case "aggregate":
                (found,) = await self._asked((AskAggregates(name=of, limit=1),), AggregatesFound)
                there = [each for each in await self.hosts_in() if of in each.aggregates]
                return there if found.aggregates else None
            case "flavor":
                (stored,) = await self._asked((AskFlavors(name=of),), FlavorsFound)
                return [] if stored.flavors else None
            case "project":
                return []

    async def _all_hosts(self, question: AskHosts) -> list[HostState]:
        (pages,) = (await self._pages({(): question}, HostsFound)).values()
        return [host for page in pages for host in page.hosts]

    async def set_hosts(
        self, campaign: CampaignState, hosts: Sequence[CampaignHost], mode: HostMode
    ) -> dict[ProviderId, str]:
        """Set these hosts to this mode. Returns why it could not be done, of those for which it could not."""
        why = f"{campaign.work.reason or 'it is emptied'} (campaign {campaign.name})"[:255]
        orders = [
            SetHost(
                host=named(each),
                mode=mode,
                reason="" if mode == "up" else why,
                for_user=f"campaign {campaign.name}"[:FOR_USER_MAX],
            )
            for each in hosts
        ]
        answers = await self.ask_all(orders) if orders else ()
        for answer in answers:
            if not isinstance(answer, HostSet | BuildRejected):
                raise WrongAnswer(f"a scheduler answered an order to set a host by {answer!r}")
        return {
            host.id: answer.reason
            for host, answer in zip(hosts, answers, strict=True)
            if isinstance(answer, BuildRejected)
        }

    async def plan(
        self,
        instances: Sequence[InstanceId],
        work: CampaignWork,
        avoid: Iterable[CampaignHost] = (),
        wishes: Mapping[InstanceId, str] | None = None,
    ) -> dict[InstanceId, DrainedInstance]:
        """Where these instances would go, if all left their hosts at once, and none went to one of the hosts to avoid. `wishes` has for each
        of them the host to which it is to go, empty for any.
        """
        away = tuple([each.id for each in avoid])
        plans: dict[InstanceId, DrainedInstance] = {}
        for some in batches_of(instances, ASKED_MAX):
            question = AskDrain(
                instances=tuple(some),
                wishes=tuple([wishes[each] for each in some]) if wishes is not None else (),
                avoid=away,
                to=work.to,
                evacuate=work.kind == "evacuate",
            )
            (found,) = await self._asked((question,), DrainFound)
            plans |= {each.id: each for each in found.instances}
        return plans

    async def active_of(self, groups: Collection[GroupId]) -> dict[GroupId, set[InstanceId]]:
        """The active members of each of these groups on hosts that are up."""
        wanted = sorted(groups)
        found = await self._asked([AskGroups(id=each) for each in wanted], GroupsFound)
        members = {
            group: {InstanceId(each.consumer) for state in page.groups for each in state.members}
            for group, page in zip(wanted, found, strict=True)
        }
        told = await self.instances([each for some in members.values() for each in some])
        names = {host_in_cell(each.cell, each.host) for each in told.values() if each.state == "active"}
        called = await self.hosts_called(sorted(names))
        up = {name for name, hosts in called.items() if any(each.up for each in hosts)}
        active = {
            id_
            for id_, each in told.items()
            if each.state == "active" and host_in_cell(each.cell, each.host) in up
        }
        return {group: some & active for group, some in members.items()}
