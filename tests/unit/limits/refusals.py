"""For each limit that is refused beyond it: how to come to it, by the door that a sender has. A case gets how much it asks for, and
says or raises why that is refused, if it is.
"""

import asyncio
import base64
import gzip
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import bcrypt
from msgspec import structs

from bus.broker import Origin
from bus.codec import CODEC, encode, lines_of
from bus.memory import MemoryBroker
from bus.message import LINES, Envelope, Message, Parcel
from bus.messages.audit import MendInstance
from bus.messages.build import BuildInstance, BuildRejected, DeleteInstance
from bus.messages.cell import AskConsole
from bus.messages.cloud import WorkerAlive
from bus.messages.hosts import HostsFound, SetAggregate
from bus.messages.keeping import CampaignWork
from bus.messages.moves import MoveWait
from bus.messages.policies import KeepingPolicy
from bus.rabbit.parcels import why_unfit
from bus.rabbit.undocumented import table
from bus.unix_socket.frames import read_frame
from bus.unix_socket.server import serve_unix
from bus.unreadable import Unreadable
from bus.workers.authority import BrokerFacts, wrong_reply_to
from bus.workers.dead_letters import Parked, parked_of, retry_parcel
from bus.workers.handlers import Answer, ReadOnly
from bus.workers.heartbeats import STAGES
from compute_sim.core.hosts import read_networks, read_pools
from compute_sim.libvirt.core.machine import read_cpus
from compute_sim.libvirt.disks import disk_size, make_config_drive
from compute_sim.libvirt.images import downloaded
from compute_sim.libvirt.settings import LibvirtRules, read_servers
from compute_sim.libvirt.work import WorkFailed
from engine.choosing.plugin_settings import PluginSettings
from engine.flavors import Flavor, InstanceId, PortRequest, RequestId, Wait
from engine.hosts import AggregateProblem, HostState, problem_of
from engine.inventories import AggregateId, ProviderId
from ironic_sync.core import notifications
from ironic_sync.core.offers import reasons_against
from keeper.asking import Schedulers
from keeper.beginning import CampaignHosts
from keeper.core.campaigns import wrong_work
from keeper.core.policies import wrong_policy
from kit.health import read_health_address
from kit.urls import check_hosts, read_secret
from laboratory.computes.hosts import read_host_size
from moor.client.bus_client import as_received
from moor.dashboard.access import fields_in
from moor.dashboard.actions import DashboardJob, JobList, TooManyJobs
from moor.dashboard.rendering import NUMBER_MAX, is_number
from nova_bridge.cloud import NotHeard, read_notification
from nova_bridge.envelope import Fields, read_envelope
from nova_bridge.selection import InstancesByService
from placement_worker.api.auth import PASSWORD_BYTES_MAX, BasicAuthentication, User
from placement_worker.api.values import ApiError
from scheduler_worker.aggregates import AggregateMembership
from scheduler_worker.cells import ConsoleRelay, StageHistory
from scheduler_worker.core.aggregates import changed
from scheduler_worker.core.instances.lifecycle import mended
from scheduler_worker.core.instances.moves import problem_with
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.wiring import STANDARD
from tests.api.whole_app import HOST, a_server
from tests.contracts.small_world import connected, parcel, publish, world
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_state, vcpus
from tests.unit.ironic.captured import a_node
from tests.unit.nova.recorded import enveloped, port
from tests.unit.nova.test_oslo_envelope import ASK
from tests.unit.nova.test_request_spec import a_group, read
from tests.unit.scheduler.lone_scheduler import NOON, LoneScheduler, an_ask
from tests.unit.scheduler.test_moves_at_api_level import a_row, an_order

Case = Callable[[Any], Any]
READER = RequestReader(STANDARD, timedelta(1), standard_plugins())


def a_build(fields: Callable[[int], Mapping[str, Any]]) -> Case:
    """A client sends a request to build with these fields."""

    def refused(much: int) -> str:
        build = BuildInstance(request_id=RequestId(UUID(int=7)), flavor=Flavor(vcpus=1))
        read = READER.alternatives_of(structs.replace(build, **fields(much)))
        return f"{read.field}: {read.reason}" if isinstance(read, BuildRejected) else ""

    return refused


def extra(*pairs: tuple[str, str], **sizes: Any) -> Mapping[str, Any]:
    return {"flavor": structs.replace(Flavor(vcpus=1, extra_specs=dict(pairs)), **sizes)}


def a_move(fields: Callable[[int], Mapping[str, Any]], kind: str = "migrate") -> Case:
    def refused(much: int) -> str:
        problem = problem_with(a_row(), an_order(kind, **fields(much)))
        return problem.reason if problem else ""

    return refused


async def a_campaign(much: int) -> str:
    """A campaign over so many hosts."""
    hosts = tuple(
        [
            HostState(id=ProviderId(UUID(int=each)), name=f"h{each}", cell="c1", up=True)
            for each in range(much)
        ]
    )

    async def ask_all(_: Sequence[Message]) -> Sequence[Message]:
        return (HostsFound(hosts=hosts),)

    found = await CampaignHosts(Schedulers(ask_all)).of(CampaignWork(cell="c1"))
    return found.reason if isinstance(found, BuildRejected) else ""


def campaign_work(fields: Callable[[int], Mapping[str, Any]]) -> Case:
    return lambda much: (wrong_work(CampaignWork(cell="c1", **fields(much))) or ("", "", ""))[2]


def policy_of(fields: Callable[[int], Mapping[str, Any]]) -> Case:
    return lambda much: (wrong_policy(KeepingPolicy(scope="cloud", **fields(much))) or ("", "", ""))[2]


def of_the_host(what: str, body: Callable[[int], Mapping[str, Any]], about: str = "") -> Case:
    """A caller of Placement's API sets these of a host."""

    async def refused(much: int) -> str:
        async with a_server() as server:
            whole = {"resource_provider_generation": 2, **body(much)}
            answer = await server.ask("PUT", f"/resource_providers/{HOST}/{what}", whole)
        # Whether there are such classes and traits is another question.
        return (
            "" if answer.is_success or "No such" in answer.text or about not in answer.text else answer.text
        )

    return refused


def published(changed: Callable[[int], Mapping[str, Any]]) -> Case:
    """On a memory broker."""

    async def refused(much: int) -> str:
        async with connected(MemoryBroker().as_user(), world()) as connection:
            await publish(connection, structs.replace(parcel(1), **changed(much)))
        return ""

    return refused


def lines(parcel: Parcel) -> str:
    read = lines_of(parcel)
    return read.reason if isinstance(read, Unreadable) else ""


async def consoles(much: int) -> str:
    """So many clients ask for a console at once, and no cell answers."""
    relay = ConsoleRelay(LoneScheduler().station, {}, MemorySchedulerStore(), clock=lambda: NOON)
    handler = relay.question_handlers()[AskConsole]
    assert isinstance(handler, ReadOnly)
    running = asyncio.create_task(relay.run())
    await asyncio.sleep(0)
    ask = an_ask(AskConsole(instance=InstanceId(UUID(int=1))))
    said = await handler.handle([structs.replace(ask, id=str(number)) for number in range(much)])
    await relay.stop()
    await running
    return " ".join(str(each.message) for each in said if isinstance(each, Answer))


async def socket_at(length: int) -> str:
    with TemporaryDirectory(prefix="m") as place:
        path = Path(place) / ("s" * (length - len(place) - 1))
        async with serve_unix(MemoryBroker(), path):
            return ""


def secret_of(length: int) -> None:
    with TemporaryDirectory() as place:
        file = Path(place, "secret")
        file.write_bytes(b"x" * length)
        file.chmod(0o600)
        read_secret(str(file))


async def host_in(many: int) -> str:
    """A host is added to one aggregate after another."""
    of = [AggregateId(UUID(int=each)) for each in range(1, many + 1)]
    picture = a_picture(a_state("h1", vcpus(8), aggregates=tuple(of[:-1])), hosts=(a_host("h1"),))

    async def ask_all(_: Sequence[Message]) -> list[Message]:
        raise StopAsyncIteration

    async def nothing() -> None: ...

    async def no_problem(_: object) -> None: ...

    hosts = AggregateMembership(picture, ask_all, nothing)
    try:
        problem = await hosts.change(of[-1], {"h1": a_state("h1").id}, {}, no_problem)
    except StopAsyncIteration:
        return ""
    return problem.reason if problem else ""


async def candidates_of(much: int) -> str:
    async with a_server() as server:
        answer = await server.ask("GET", f"/allocation_candidates?resources=VCPU:{much}")
    return "" if answer.is_success else answer.text


async def asked_with(keys: int) -> str:
    async with a_server() as server:
        answer = await server.ask("GET", f"/resource_providers?{'&'.join(['name=a'] * keys)}")
    return answer.text if f"{keys} keys" in answer.text else ""


def fetched_drive_of(size: int) -> None:
    with TemporaryDirectory() as place:
        fetched = Path(place, "fetched")
        with fetched.open("wb") as file:
            file.truncate(size)
        make_config_drive("http://a", Path(place, "drive"), InstanceId(UUID(int=1)), "a", lambda _: fetched)


def config_drive_of(size: int) -> None:
    packed = base64.b64encode(gzip.compress(bytes(size), 1)).decode()
    with TemporaryDirectory() as place:
        make_config_drive(packed, Path(place, "drive"), InstanceId(UUID(int=1)), "a", Path)


async def image_at(length: int) -> str:
    def download() -> None:
        with downloaded(label(length, "http://a/"), LibvirtRules(), lambda: None):
            pass

    try:
        await asyncio.to_thread(download)
    except WorkFailed as refused:
        # None is downloaded: no server is allowed.
        return str(refused) if "characters" in str(refused) else ""
    return ""


def node_of_class(length: int) -> str:
    return " ".join(reasons_against(a_node(resource_class="x" * (length - len("CUSTOM_")))))


def told_in(year: int) -> str:
    told = WorkerAlive(
        cell="c1",
        worker="w",
        role="compute",
        release="1",
        started_at=NOON,
        told_at=datetime(year, 6, 1, tzinfo=UTC),
    )
    read = CODEC.decode(encode(Envelope(message=told, id="1")))
    return read.reason if isinstance(read, Unreadable) else ""


def deleted_in(year: int) -> str:
    asked = Envelope(
        message=DeleteInstance(instance=InstanceId(UUID(int=1))),
        id="1",
        sent_at=datetime(year, 6, 1, tzinfo=UTC),
    )
    read = CODEC.decode(encode(asked))
    return read.reason if isinstance(read, Unreadable) else ""


async def goes_on() -> None:
    await asyncio.Event().wait()


async def orders_of_a_dashboard(many: int) -> str:
    jobs, begun = JobList(), []
    try:
        for number in range(many):
            begun.append(DashboardJob(f"{number}", "", "", "", "", "", NOON))
            jobs.begin(begun[-1], goes_on)
    except TooManyJobs as refused:
        return str(refused)
    finally:
        for job in begun:
            if job.task:
                job.task.cancel()
    return ""


def aggregate_with(many: int) -> str:
    order = SetAggregate(
        aggregate=AggregateId(UUID(int=1)), name="a", metadata={f"k{n}": "x" for n in range(many)}
    )
    after = changed(order, (), (), 1)
    return after.reason if isinstance(after, AggregateProblem) else ""


def metadata(key: str) -> Case:
    def refused(much: float) -> str:
        problem = problem_of({key: str(much)}, ("cpu_weight_multiplier",))
        return problem.reason if problem else ""

    return refused


def heard_of(size: int) -> str:
    heard = read_notification(b'{"event_type":"x"}'.ljust(size))
    return heard.reason if isinstance(heard, NotHeard) else ""


def ironics_word_of(size: int) -> str:
    reason = str(getattr(notifications.read(b"{}".ljust(size)), "reason", ""))
    return reason if "bytes" in reason else ""


async def frame_of(size: int) -> None:
    stream = asyncio.StreamReader(limit=1 << 30)
    stream.feed_data(struct.pack(">I", size) + bytes(size))
    await read_frame(stream)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def an_envelope(fields: Callable[[int], Mapping[str, Any]]) -> Case:
    return lambda much: read_envelope(enveloped({**ASK, **fields(much)}))


def pairs_of(size: int) -> Mapping[str, str]:
    """Properties of an image that have so many bytes as JSON."""
    keys = [f"trait:CUSTOM_{each:02}" for each in range(80)]
    left = size - len(json.dumps(dict.fromkeys(keys, "required"), separators=(",", ":")))
    keys = [f"{key}{'X' * (left // len(keys) + (at < left % len(keys)))}" for at, key in enumerate(keys)]
    return dict.fromkeys(keys, "required")


def message_of(size: int) -> None:
    def build(length: int) -> BuildInstance:
        return BuildInstance(
            request_id=RequestId(UUID(int=7)), flavor=Flavor(extra_specs={"k": "x" * length})
        )

    as_received(build(size - len(encode(Envelope(message=build(0))))))


def label(length: int, start: str = "") -> str:
    return start + "x" * (length - len(start))


async def login_of(length: int) -> str:
    """Only as much of a password counts as bcrypt reads."""
    password = b"x" * length
    users = {"ann": User(bcrypt.hashpw(password[:PASSWORD_BYTES_MAX], bcrypt.gensalt(4)))}
    header = base64.b64encode(b"ann:" + password).decode()
    try:
        await BasicAuthentication(users).caller({"authorization": f"Basic {header}"})
    except ApiError:
        return "refused"
    return ""


def mend_of(sequence: int) -> str:
    row = a_row()
    of_cell = structs.replace(row.told, sequence=sequence)
    return "" if mended(row, MendInstance(seen=row.told.sequence, instance=of_cell)) else "nothing is done"


def tried_before(count: int) -> str:
    parcel = retry_parcel(b"", "placement.work", Origin("", "", "e", "k"), Parked(count))
    return "" if parked_of(parcel).attempts == count else "not believed"


def table_in_tables(depth: int) -> str:
    inner = struct.pack(">I", 0)
    for _ in range(depth - 1):
        inner = struct.pack(">I", len(inner) + 3) + b"\x01aF" + inner
    found: Any = table(inner)[1]
    while found:
        found = found["a"]
    return "" if found == {} else "not decoded"


def built(count: int) -> str:
    stage = STAGES[0]
    beat = WorkerAlive(
        cell="c1",
        worker="w",
        role=stage.role,
        release="1",
        started_at=NOON,
        told_at=NOON,
        stages={stage.name: (count,)},
    )
    history = StageHistory(lambda: NOON)
    history.hear(beat, None)
    return "" if history.times() else "not counted"


# Of these a stranger hears nothing, or nobody waits for an answer.
UNTOLD: Mapping[str, Case] = {
    "bus/messages/build.py SEQUENCE_FROM_CELL_MAX": mend_of,
    "bus/rabbit/undocumented.py DEPTH_MAX": table_in_tables,
    "bus/workers/dead_letters.py COUNT_MAX": tried_before,
    "placement_worker/api/auth.py PASSWORD_BYTES_MAX": login_of,
    "scheduler_worker/cells.py GROWTH_MAX": built,
}
# By the file and the name of the limit.
REFUSED: dict[str, Case | tuple[Case, ...]] = {
    "bus/broker.py BODY_BYTES_MAX": published(lambda n: {"body": b"x" * n}),
    "bus/broker.py NAME_BYTES_MAX": published(lambda n: {"content_type": label(n)}),
    "bus/memory/virtual_host.py HEADERS_LENGTH_MAX": published(lambda n: {"headers": {"a": label(n - 1)}}),
    "bus/message.py PARCEL_BYTES_MAX": lambda n: lines(Parcel("e", "k", b"x" * n, content_type=LINES)),
    "bus/message.py PARCEL_ITEMS_MAX": lambda n: lines(Parcel("e", "k", b"x\n" * n, content_type=LINES)),
    "bus/rabbit/parcels.py EXCHANGE_BYTES_MAX": lambda n: why_unfit(Parcel(label(n), "k", b"")),
    "bus/unix_socket/server.py PATH_BYTES_MAX": socket_at,
    "bus/workers/authority.py REPLY_TO_LENGTH_MAX": lambda n: wrong_reply_to(
        label(n, "answers.me."), "me", BrokerFacts()
    ),
    "compute_sim/libvirt/core/machine.py CPU_MAX": lambda n: str(read_cpus(str(n)) and ""),
    "compute_sim/libvirt/disks.py UNCOUNTED_GB_MAX": lambda n: disk_size("i", n << 30, 0, 0),
    "compute_sim/libvirt/disks.py BYTES_MAX": (config_drive_of, fetched_drive_of),
    "compute_sim/libvirt/images.py _URL_MAX": image_at,
    "bus/unix_socket/frames.py FRAME_BYTES_MAX": frame_of,
    "ironic_sync/core/notifications.py BODY_BYTES_MAX": ironics_word_of,
    "ironic_sync/core/offers.py NAME_MAX": node_of_class,
    "bus/unreadable.py YEAR_MAX": (deleted_in, told_in),
    "moor/dashboard/actions.py UNDER_WAY_MAX": orders_of_a_dashboard,
    # The page that asked says how much it may be.
    "moor/dashboard/rendering.py NUMBER_MAX": lambda n: "" if is_number(str(n)) else f"at most {NUMBER_MAX}",
    "nova_bridge/envelope.py ITEMS_MAX": lambda n: Fields({"of": [0] * n}, "").list("of"),
    "nova_bridge/envelope.py WHOLE_MAX": lambda n: Fields({"of": n}, "").whole("of"),
    "placement_worker/api/values.py BODY_VALUES_MAX": of_the_host(
        "traits", lambda n: {"traits": ["A"] * (n - 1)}, "values"
    ),
    "placement_worker/api/values.py QUERY_KEYS_MAX": asked_with,
    "engine/choosing/plugins.py MULTIPLIERS_MAX": lambda n: (
        PluginSettings(metrics_weights=(f"a={n}",)).ratios
    ),
    "engine/guests.py CELLS_MAX": a_build(lambda n: extra(("hw:numa_nodes", str(n)), vcpus=n, ram_mb=n)),
    "engine/guests.py CPUS_MAX": a_build(lambda n: extra(("hw:numa_nodes", "1"), vcpus=n, ram_mb=64)),
    "engine/guests.py PAGE_KIB_MAX": a_build(lambda n: extra(("hw:mem_page_size", str(n)), ram_mb=16 << 10)),
    "engine/hosts.py LIMIT_MAX": metadata("max_instances_per_host"),
    "engine/hosts.py MULTIPLIER_MAX": metadata("cpu_weight_multiplier"),
    "engine/inventories.py INTEGER_MAX": (
        a_build(lambda n: extra(("resources:VGPU", str(n)))),
        lambda n: read_networks((f"a={n}",)),
        lambda n: read_pools((f"a:DISK_GB={n}",), "c1"),
        candidates_of,
        a_build(lambda n: extra(vcpus=n)),
        a_build(lambda n: extra(root_gb=n - 3, ephemeral_gb=1, swap_mb=1025)),
    ),
    "engine/requests/grammar.py WEIGHT_MAX": a_build(lambda n: extra(("trait:CUSTOM_A", f"preferred:{n}"))),
    "engine/requests/groups.py GROUPS_MAX": a_build(
        lambda n: extra(("group_policy", "none"), *[(f"resources{g}:VGPU", "1") for g in range(n)])
    ),
    "engine/requests/groups.py TRAIT_MAX": a_build(
        lambda n: {
            "port_requests": (
                PortRequest(
                    id="p", resources={"VGPU": 1}, physical_network="x" * (n - len("CUSTOM_PHYSNET_"))
                ),
            )
        }
    ),
    "engine/requests/reading.py ALTERNATIVES_MAX": a_build(
        lambda n: {"alternatives": (Flavor(vcpus=1),) * (n - 1)}
    ),
    "engine/flavors.py INSTANCE_PRIORITY_MAX": (
        a_build(lambda n: {"priority": n}),
        a_build(lambda n: extra(("moor:priority", f"{n}"))),
    ),
    "engine/requests/reading.py CONFIG_DRIVE_BYTES_MAX": a_build(
        lambda n: {"config_drive": "\n" * ((n - 2) // 2) + "x" * (n % 2)}
    ),
    "engine/requests/reading.py COUNT_MAX": a_build(lambda n: {"count": n}),
    "engine/requests/reading.py DEADLINE_S_MAX": (
        a_build(lambda n: {"deadline_s": n}),
        a_move(lambda n: {"deadline_s": n}),
    ),
    "engine/requests/reading.py EXTRA_SPECS_MAX": (
        a_build(lambda n: extra(*[(f"trait:CUSTOM_{each}", "required") for each in range(n)])),
        a_build(lambda n: {"image_properties": {f"trait:CUSTOM_{each}": "required" for each in range(n)}}),
    ),
    "engine/requests/reading.py NAMED_HOSTS_MAX": (
        a_build(lambda n: {"hosts": ("h",) * n}),
        a_build(lambda n: {"ignore_hosts": ("h",) * n}),
    ),
    "engine/requests/reading.py PAIRS_BYTES_MAX": a_build(
        # Each pair has 23 bytes beside its key, and the braces have two.
        lambda n: {"image_properties": pairs_of(n)}
    ),
    "engine/requests/reading.py PRIORITY_MAX": (
        a_build(lambda n: {"wait": Wait(for_s=1, priority=n)}),
        a_move(lambda n: {"wait": MoveWait(for_s=1, priority=n)}),
    ),
    "engine/requests/reading.py VALUE_LENGTH_MAX": a_build(
        lambda n: extra(("quota:disk_read_bytes_sec", label(n)))
    ),
    "engine/requests/reading.py WAIT_S_MAX": (
        a_build(lambda n: {"wait": Wait(for_s=n)}),
        a_move(lambda n: {"wait": MoveWait(for_s=n)}),
    ),
    "kit/urls.py SECRET_BYTES_MAX": secret_of,
    "kit/urls.py PORT_MAX": (
        lambda n: check_hosts(f"amqp://a:{n},b"),
        lambda n: read_health_address(str(n)),
        lambda n: read_servers((f"http://a:{n}",)),
    ),
    "bus/messages/keeping.py CAMPAIGN_HOSTS_MAX": a_campaign,
    "keeper/core/campaigns.py SECONDS_MAX": campaign_work(lambda n: {"wait_s": n}),
    "keeper/core/policies.py RESTARTS_MAX": policy_of(lambda n: {"restarts": n}),
    "keeper/core/policies.py SECONDS_MAX": (
        policy_of(lambda n: {"after_s": n}),
        policy_of(lambda n: {"fence_s": n}),
    ),
    "keeper/core/policies.py REST_S_MAX": policy_of(lambda n: {"balance": "even", "rest_s": n}),
    "keeper/core/policies.py HOSTS_MAX": policy_of(lambda n: {"lost_max": n}),
    "laboratory/computes/hosts.py DEVICES_MAX": lambda n: read_host_size(
        ",".join(["device=pci:10de:20b0"] * n)
    ),
    "laboratory/computes/hosts.py NUMA_NODES_MAX": lambda n: read_host_size(f"numa_nodes={n}"),
    "moor/client/bus_client.py LINE_BYTES_MAX": message_of,
    "moor/dashboard/access.py FIELDS_MAX": lambda n: fields_in(
        "&".join(f"f{each}=" for each in range(n)).encode()
    ),
    "nova_bridge/cloud.py BODY_MAX": heard_of,
    "nova_bridge/demands.py GROUPS_MAX": lambda n: read(
        {"requested_resources": [port(f"p-{each}", required_traits=[]) for each in range(n)]}
    ),
    "nova_bridge/envelope.py BODY_MAX": lambda n: read_envelope(enveloped(ASK).ljust(n)),
    "nova_bridge/envelope.py DEPTH_MAX": an_envelope(lambda n: {"args": {"a": nested(n - 2)}}),
    "nova_bridge/envelope.py NAME_MAX": an_envelope(lambda n: {"method": label(n)}),
    "nova_bridge/envelope.py TIMEOUT_S_MAX": an_envelope(lambda n: {"_timeout": n}),
    "nova_bridge/request_spec.py PER_HOST_MAX": lambda n: read(
        {"instance_group": a_group(_rules={"max_server_per_host": str(n)})}
    ),
    "nova_bridge/selection.py INSTANCES_MAX": lambda n: InstancesByService().synced(
        {"host_name": "", "instance_uuids": [str(UUID(int=each)) for each in range(n)]}
    ),
    "placement_worker/api/schemas.py INVENTORIES_MAX": of_the_host(
        "inventories", lambda n: {"inventories": {f"CUSTOM_{each:050}": {"total": 1} for each in range(n)}}
    ),
    "placement_worker/api/schemas.py QUALITIES_MAX": of_the_host(
        "aggregates", lambda n: {"aggregates": [str(UUID(int=each)) for each in range(n)]}
    ),
    "placement_worker/api/schemas.py RATIO_MAX": of_the_host(
        "inventories", lambda n: {"inventories": {"VCPU": {"total": 8, "allocation_ratio": n}}}
    ),
    "scheduler_worker/aggregates.py AGGREGATES_PER_PROVIDER_MAX": host_in,
    "scheduler_worker/cells.py WAITING_MAX": consoles,
    "scheduler_worker/core/instances/moves.py CONFIRM_S_MAX": a_move(lambda n: {"confirm_s": n}),
    "bus/messages/hosts.py METADATA_KEYS_MAX": aggregate_with,
}
