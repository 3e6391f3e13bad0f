"""Clients that boot, repeat, ask, rebuild, move and delete, and an operator. They carry out the plan."""

import asyncio
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import structs

from bus.broker import Broker
from bus.message import Message
from bus.messages.books import AskQuotas, QuotasFound, SetQuota, WriteAnswered
from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
    InstancePlaced,
    InstancesFound,
    InstanceState,
    InstanceWaiting,
    RebuildInstance,
)
from bus.messages.catalog import (
    AskDeviceProfiles,
    AskFlavors,
    AskImages,
    CreateDeviceProfile,
    CreateFlavor,
    CreateImage,
    DeleteDeviceProfile,
    DeleteFlavor,
    DeleteImage,
    DeviceProfilesFound,
    FlavorsFound,
    ImagesFound,
    NamedImage,
    SetImage,
)
from bus.messages.cloud import AskCells, CellsFound
from bus.messages.hosts import (
    AggregateDeleted,
    AggregateSet,
    AggregatesFound,
    AskAggregates,
    AskHosts,
    DeleteAggregate,
    DeleteHost,
    HostDeleted,
    HostSet,
    SetAggregate,
    SetHost,
)
from bus.messages.planning import (
    AskCapabilities,
    AskDrain,
    AskExplanation,
    AskPlan,
    AskReasons,
    CapabilitiesFound,
    DrainFound,
    ExplanationsFound,
    PlanFound,
    ReasonsFound,
)
from bus.messages.projects import (
    AskApplications,
    AskGroups,
    CreateGroup,
    DeleteGroup,
    GroupsFound,
    SetApplication,
)
from bus.topology import EVENTS, FEED, Grant
from bus.workers.connections import Station, listen
from engine.flavors import (
    DeviceGroup,
    DeviceProfile,
    Flavor,
    Image,
    InstanceId,
    JoinedGroup,
    RequestId,
    Wait,
    instance_id_of,
)
from engine.inventories import AggregateId, ServerGroup
from kit.errors import Failure
from laboratory.computes.faults import Dies
from tests.simulation.drawing_worlds import NOWHERE
from tests.simulation.faults import CellDown
from tests.simulation.findings import Findings
from tests.simulation.host_history import short_id
from tests.simulation.keeping import CampaignOperator
from tests.simulation.loop import until_s
from tests.simulation.movers import Movers
from tests.simulation.nodes_checker import name_of
from tests.simulation.plan import (
    GOLD,
    PROJECT,
    AggregateOrder,
    Boot,
    Delete,
    DisabledHost,
    HostOrder,
    InvalidRequest,
    Plan,
    QuotaOrder,
    Rebuild,
)
from tests.simulation.process import SimProcess
from tests.simulation.shares_checkers import NAMES
from tests.simulation.workers import BUS

ALL_FEEDS = (Grant(FEED, ("*",)),)
EVENT_GRANTS = (Grant(EVENTS, ("instance.*.*", "build.*")),)
IMAGE = Image(source="http://images/debian", checksum="0a1b")
OF_INSTANCES = (
    InstanceWaiting,
    InstancePlaced,
    InstanceActive,
    InstanceMoved,
    InstanceFailed,
    InstanceDeleted,
)
# How often and how long a client checks whether an instance that it wants to rebuild is active.
REBUILD_LOOK_S, REBUILD_UNTIL_S = 0.5, 40.0
REBUILD_DEADLINE_S = 20
# All boots and their repeats are sent before the last of these moments.
GROUPS_LOOKED_AT_S = (15.0, 30.0, 56.0)
AGGREGATE = AggregateId(UUID(int=0xA66))
AGGREGATE_TRIES = 8
# So often an operator tries to delete a host that is gone.
DELETED_EVERY_S = 5.0
INVALID_LOOK_S = 1.0
# After the outage began; and after all faults.
KNOWN_DOWN_AFTER_S = 14.0
OPERATOR_ASKS_S = (12.0, 27.0, 44.0)


class Client:
    def __init__(self, plan: Plan, findings: Findings) -> None:
        self._plan = plan
        self._findings = findings
        self.heard: dict[InstanceId, InstanceState] = {}
        self.accepted: set[RequestId] = set()
        self.movers = Movers(self.heard, findings)
        # Set when the group exists.
        self._created = {group.id: asyncio.Event() for group in plan.groups}

    async def run(self, process: SimProcess, broker: Broker) -> None:
        station = Station(
            broker, "client", settings=BUS, asks=True, clock=process.clock, chance=process.chance
        )
        plan = self._plan
        ask = partial(_ask_until_answered, station)
        tasks_of_plan = [
            *(self._boot(station, boot) for boot in plan.boots),
            *(self._use_group(station, group, is_deleted=group is plan.groups[-1]) for group in plan.groups),
            *(self._delete(station, delete) for delete in plan.deletes),
            *(self._rebuild(station, rebuild) for rebuild in plan.rebuilds),
            *(self.movers.move(ask, move) for move in plan.moves),
            *(self.movers.switch(ask, switch) for switch in plan.switches),
            *(self.movers.evacuate(ask, evacuation) for evacuation in plan.evacuations),
            *(self._send_invalid(station, each) for each in plan.invalid_requests),
        ]
        async with asyncio.TaskGroup() as tasks:
            for work in (
                station.run(),
                self._listen(station),
                self._compare_answers(station),
                *tasks_of_plan,
            ):
                tasks.create_task(work)

    async def _boot(self, station: Station, boot: Boot) -> None:
        if boot.group is not None:
            await self._created[boot.group].wait()
        for at_s in (boot.at_s, *boot.repeated_at_s):
            await until_s(at_s)
            self._findings.log("client", "boots {} of {}, {} CPUs each", boot.count, boot.name, boot.vcpus)
            await _send_until_taken(station, build_of(boot))

    async def _use_group(self, station: Station, group: ServerGroup, *, is_deleted: bool) -> None:
        """Create a server group, look at it now and then, and delete it at the end if `is_deleted`: its members stay."""
        order = CreateGroup(
            id=group.id, policy=group.policy, max_per_host=group.max_per_host, project=PROJECT
        )
        created = await _ask_until_answered(station, order)
        self._created[group.id].set()
        question = AskGroups(id=group.id, project=PROJECT)
        for at_s in GROUPS_LOOKED_AT_S:
            await until_s(at_s)
            shown = await _ask_until_answered(station, question)
            if not isinstance(created, GroupsFound) or not isinstance(shown, GroupsFound) or not shown.groups:
                self._findings.breaks("a question gets its answer", f"a group is shown as {shown!r}")
        if is_deleted:
            await _ask_until_answered(station, DeleteGroup(id=group.id, project=PROJECT))

    async def _delete(self, station: Station, delete: Delete) -> None:
        await until_s(delete.at_s)
        instance = instance_id_of(RequestId(delete.request), delete.index)
        self._findings.log("client", "deletes {}", instance)
        await _send_until_taken(station, DeleteInstance(instance=instance))

    async def _rebuild(self, station: Station, rebuild: Rebuild) -> None:
        """Rebuild once the instance is active, or in error on its host. An instance that gets to neither is not rebuilt."""
        await until_s(rebuild.at_s)
        instance = instance_id_of(RequestId(rebuild.request), rebuild.index)
        loop = asyncio.get_running_loop()
        while not _may_be_rebuilt(self.heard.get(instance)):
            if loop.time() > REBUILD_UNTIL_S:
                return
            await asyncio.sleep(REBUILD_LOOK_S)
        order = RebuildInstance(
            request_id=RequestId(rebuild.id),
            instance=instance,
            image=Image(source=rebuild.image),
            project=PROJECT,
            deadline_s=REBUILD_DEADLINE_S,
        )
        for at_s in (loop.time(), *rebuild.repeated_at_s):
            await until_s(at_s)
            self._findings.log("client", "rebuilds {} with {}", instance, rebuild.image)
            answer = await _ask_until_answered(station, order)
            if not isinstance(answer, InstancesFound | BuildRejected):
                self._findings.breaks("a question gets its answer", f"a rebuild is answered by {answer!r}")

    async def _send_invalid(self, station: Station, invalid: InvalidRequest) -> None:
        """Send an invalid request: it must be rejected. One that has the id of another request is sent once that request
        is known, which faults may delay.
        """
        await until_s(invalid.at_s)
        while invalid.id_of is not None and not self._is_known(RequestId(invalid.id_of)):
            await asyncio.sleep(INVALID_LOOK_S)
        request = None if invalid.id_of is None else RequestId(invalid.id_of)
        flavor = None if invalid.id_of is None else Flavor(vcpus=3)
        asked = await _ask_until_answered(
            station, BuildInstance(request_id=request, flavor=flavor, name="invalid")
        )
        if not isinstance(asked, BuildRejected):
            self._findings.breaks("an invalid request is rejected", f"answered by {asked!r}")

    def _is_known(self, request: RequestId) -> bool:
        return request in self.accepted or instance_id_of(request, 0) in self.heard

    async def _compare_answers(self, station: Station) -> None:
        """The answer to a question is never older than an event that was heard before."""
        while True:
            await asyncio.sleep(5)
            heard = dict(list(self.heard.items())[-20:])
            answer = await _ask_until_answered(station, AskInstances(instances=tuple(heard)))
            await _ask_until_answered(station, AskHosts(limit=3))
            if not isinstance(answer, InstancesFound):
                continue
            for found in answer.instances:
                if found.id in heard and found.state == "accepted":
                    self._findings.breaks(
                        "every request ends once",
                        f"{short_id(found.id)} was {heard[found.id].state} in an event, and is {found.state} in a later answer",
                    )

    async def _listen(self, station: Station) -> None:
        feed = listen(station, EVENT_GRANTS)
        async for batch in feed:
            for each in batch:
                self._hear(each.message)

    def _hear(self, message: Message) -> None:
        if isinstance(message, BuildAccepted):
            self.accepted.add(message.request_id)
        if not isinstance(message, OF_INSTANCES):
            return
        now = message.instance
        before = self.heard.get(now.id)
        if before is None or before.sequence < now.sequence:
            self.heard[now.id] = now
        elif before.sequence == now.sequence and before.state != now.state:
            self._findings.breaks(
                "every request ends once",
                f"{short_id(now.id)} is {before.state} and {now.state} in two events with the same sequence {now.sequence}",
            )


class Operator:
    """Disables hosts and enables them again; registers an application, and listens to its feed."""

    def __init__(self, plan: Plan, findings: Findings) -> None:
        self._plan = plan
        self._findings = findings

    async def run(self, process: SimProcess, broker: Broker) -> None:
        station = Station(
            broker, "operator", settings=BUS, asks=True, clock=process.clock, chance=process.chance
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(station.run())
            tasks.create_task(self._register(station))
            tasks.create_task(self._listen(station))
            for switch in self._plan.disabled_hosts:
                tasks.create_task(self._switch(station, switch))
            if self._plan.groups:
                tasks.create_task(self._keep_aggregate(station))
                tasks.create_task(self._ask_why(station))
            for host_order in self._plan.host_orders:
                tasks.create_task(self._set_host(station, host_order))
            if self._plan.outage is not None:
                tasks.create_task(self._ask_cells(station, self._plan.outage))
            for order in self._plan.aggregate_orders:
                tasks.create_task(self._change_aggregate(station, order))
            for quota_order in self._plan.quota_orders:
                tasks.create_task(self._set_quota(station, quota_order))
            if self._plan.switches:
                tasks.create_task(self._keep_image(station))
            for work in CampaignOperator(self._plan, self._findings, partial(self._ask, station)).work():
                tasks.create_task(work)

    async def _register(self, station: Station) -> None:
        await _ask_until_answered(station, SetApplication(name="shop", projects=(PROJECT,)))
        await _ask_until_answered(station, AskApplications())

    async def _listen(self, station: Station) -> None:
        feed = listen(station, ALL_FEEDS)
        async for batch in feed:
            for each in batch:
                said: Any = each.message
                project = said.instance.project if isinstance(said, OF_INSTANCES) else said.project
                if project != PROJECT:
                    self._findings.breaks("an application hears of its own projects", f"it heard {said!r}")

    async def _keep_aggregate(self, station: Station) -> None:
        """Change the metadata of an aggregate, look at it, and delete it at the end. It has no hosts: only administrators
        change providers here, and their checker knows of no other writer.
        """
        for at_s in OPERATOR_ASKS_S:
            await until_s(at_s)
            order = SetAggregate(aggregate=AGGREGATE, name="rack", metadata={"rack": str(at_s)})
            await self._ask(station, order, AggregateSet)
            found = await self._ask(station, AskAggregates(), AggregatesFound)
            if not isinstance(found, AggregatesFound) or [each.name for each in found.aggregates] != ["rack"]:
                self._findings.breaks("a question gets its answer", f"an aggregate is shown as {found!r}")
        await self._ask(station, DeleteAggregate(aggregate=AGGREGATE), AggregateDeleted)

    async def _change_aggregate(self, station: Station, planned: AggregateOrder) -> None:
        """Repeat the order while it is refused: the host may not be known yet, or another order about it comes late."""
        await until_s(planned.at_s)
        order = SetAggregate(
            aggregate=planned.aggregate,
            name=planned.name,
            metadata=planned.metadata,
            add_hosts=planned.add_hosts,
            remove_hosts=planned.remove_hosts,
        )
        for _ in range(AGGREGATE_TRIES):
            self._findings.log("operator", "{}", planned)
            answer = await self._ask(station, order, AggregateSet, BuildRejected)
            if isinstance(answer, AggregateSet):
                return
            self._findings.log("operator", "was refused: {}", answer)
            await asyncio.sleep(1)

    async def _keep_image(self, station: Station) -> None:
        """Store an image, change it, look at it, and delete it at the end."""
        image = NamedImage(name="debian", source="http://images/debian", properties={"os_type": "linux"})
        await self._ask(station, CreateImage(image=image), ImagesFound)
        for at_s in OPERATOR_ASKS_S:
            await until_s(at_s)
            source = f"http://images/debian-{at_s}"
            await self._ask(station, SetImage(name="debian", source=source), ImagesFound)
            found = await self._ask(station, AskImages(name="debian"), ImagesFound)
            if not isinstance(found, ImagesFound) or [each.source for each in found.images] != [source]:
                self._findings.breaks("a question gets its answer", f"an image is shown as {found!r}")
        await self._ask(station, DeleteImage(name="debian"), ImagesFound)

    async def _set_quota(self, station: Station, planned: QuotaOrder) -> None:
        await until_s(planned.at_s)
        self._findings.log("operator", "{}", planned)
        profile = DeviceProfile(name="fpga", groups=(DeviceGroup(resources={"FPGA": 1}),))
        request = BuildInstance(flavor=Flavor(vcpus=1, ram_mb=1, root_gb=1), project=PROJECT)
        asked: tuple[tuple[Message, type[Message]], ...] = (
            (SetQuota(project=PROJECT, limits=planned.limits), WriteAnswered),
            (CreateFlavor(flavor=Flavor(name="f", vcpus=1)), FlavorsFound),
            (AskFlavors(), FlavorsFound),
            (CreateDeviceProfile(profile=profile), DeviceProfilesFound),
            (AskDeviceProfiles(), DeviceProfilesFound),
            (DeleteDeviceProfile(name="fpga"), DeviceProfilesFound),
            (DeleteFlavor(name="f"), FlavorsFound),
            (AskQuotas(project=PROJECT), QuotasFound),
            (AskPlan(request=request), PlanFound),
        )
        for question, answer in asked:
            await self._ask(station, question, answer)

    async def _ask_why(self, station: Station) -> None:
        """Ask for plans, reasons, capabilities and explanations at several times of the run. The funnel of a plan
        must count each host once.
        """
        request = BuildInstance(flavor=Flavor(vcpus=1, ram_mb=1, root_gb=1))
        host = next(iter(self._plan.hosts.values()))[0].name
        for at_s in OPERATOR_ASKS_S:
            await until_s(at_s)
            plan = await self._ask(station, AskPlan(request=request), PlanFound)
            if isinstance(plan, PlanFound):
                counted = plan.qualify + sum(step.removed for step in plan.funnel.steps)
                if counted != plan.funnel.hosts:
                    self._findings.breaks(
                        "every no has its reasons",
                        f"{counted} of {plan.funnel.hosts} hosts counted: {plan!r}",
                    )
            await self._ask(station, AskReasons(request=request), ReasonsFound)
            await self._ask(station, AskCapabilities(), CapabilitiesFound)
            await self._ask(station, AskDrain(host=host), DrainFound, BuildRejected)
            question = AskExplanation(request_id=RequestId(self._plan.boots[0].id))
            await self._ask(station, question, ExplanationsFound, BuildRejected)

    async def _ask_cells(self, station: Station, outage: CellDown) -> None:
        """Ask for the states of the cells while one is down."""
        await until_s(outage.at_s + KNOWN_DOWN_AFTER_S)
        found = await self._ask(station, AskCells(), CellsFound)
        down = (
            [each.cell for each in found.cells if each.life == "down"]
            if isinstance(found, CellsFound)
            else []
        )
        if outage.cell in down:
            self._findings.count("outage", "told")

    async def _ask(self, station: Station, question: Message, *kinds: type[Message]) -> Message:
        answer = await _ask_until_answered(station, question)
        if not isinstance(answer, kinds):
            self._findings.breaks(
                "a question gets its answer", f"{type(question).__name__} is answered by {answer!r}"
            )
        return answer

    async def _set_host(self, station: Station, planned: HostOrder) -> None:
        await until_s(planned.at_s)
        order = SetHost(host=planned.host, mode=planned.mode, reason="maintenance", sure=True)
        for _ in range(AGGREGATE_TRIES):
            self._findings.log("operator", "sets {} {}", planned.host, planned.mode)
            answer = await self._ask(station, order, HostSet, BuildRejected)
            if isinstance(answer, HostSet) or planned.host == NOWHERE:
                self._findings.count(
                    "host mode", planned.mode if isinstance(answer, HostSet) else "unknown host"
                )
                break
            await asyncio.sleep(1)
        if any(isinstance(fault, Dies) and planned.host in fault.hosts for fault in self._plan.script.faults):
            await self._delete_host(station, planned.host)

    async def _delete_host(self, station: Station, host: str) -> None:
        """Delete a host that never returns, as soon as nothing is left on it."""
        for _ in range(AGGREGATE_TRIES):
            await asyncio.sleep(DELETED_EVERY_S)
            answer = await self._ask(station, DeleteHost(host=host), HostDeleted, BuildRejected)
            if isinstance(answer, HostDeleted):
                self._findings.log("operator", "deletes {}", host)
                return

    async def _switch(self, station: Station, switch: DisabledHost) -> None:
        await until_s(switch.at_s)
        self._findings.log("operator", "disables {}", switch.host)
        await _ask_until_answered(station, SetHost(host=switch.host, mode="draining", reason="maintenance"))
        await until_s(switch.until_s)
        self._findings.log("operator", "enables {}", switch.host)
        await _ask_until_answered(station, SetHost(host=switch.host, mode="up"))


def build_of(boot: Boot) -> BuildInstance:
    if boot.node_class:
        return BuildInstance(
            request_id=RequestId(boot.id),
            flavor=Flavor(
                name="metal", root_gb=0, extra_specs={f"resources:{name_of(boot.node_class)}": "1"}
            ),
            count=boot.count,
            name=boot.name,
            project=PROJECT,
            deadline_s=boot.deadline_s,
            image=IMAGE,
            ports=boot.ports,
        )
    specs = {f"trait:{GOLD}": "required"} if boot.needs_gold else {}
    group = None if boot.group is None else JoinedGroup(id=boot.group)
    build = BuildInstance(
        request_id=RequestId(boot.id),
        group=group,
        flavor=Flavor(name="f", vcpus=boot.vcpus, ram_mb=boot.ram_mb, root_gb=1, extra_specs=specs),
        count=boot.count,
        name=boot.name,
        project=PROJECT,
        hosts=(boot.host,) if boot.host else (),
        deadline_s=boot.deadline_s,
        all_or_nothing=boot.all_or_nothing,
        image=Image(source=boot.image) if boot.image else None,
        wait=Wait(for_s=boot.wait_s, priority=boot.priority) if boot.wait_s else None,
    )
    if boot.alternatives:
        build = _with_alternatives(build, boot)
    return build if boot.demand is None else boot.demand.fill_in(build)


def _with_alternatives(build: BuildInstance, boot: Boot) -> BuildInstance:
    assert build.flavor is not None, "each boot has a size"
    best, *others = NAMES
    return structs.replace(
        build,
        flavor=structs.replace(build.flavor, name=best),
        alternatives=tuple(
            Flavor(name=name, vcpus=vcpus, ram_mb=ram_mb, root_gb=1)
            for name, (vcpus, ram_mb) in zip(others, boot.alternatives, strict=True)
        ),
    )


def _may_be_rebuilt(state: InstanceState | None) -> bool:
    if state is None:
        return False
    return state.state == "active" or (state.state == "error" and bool(state.host))


async def _send_until_taken(station: Station, order: Message) -> None:
    """Send the order repeatedly until a queue takes it."""
    while True:
        try:
            return await station.publisher.send(order)
        except Failure:
            await asyncio.sleep(0.5)


async def _ask_until_answered(station: Station, question: Message) -> Message:
    while True:
        try:
            return await station.ask(structs.replace(question))
        except Failure:
            await asyncio.sleep(1)
