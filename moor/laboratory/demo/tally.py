"""Counts the events that were received. The screen shows only these counts, and all of them come from the bus."""

import time
from collections import deque

from msgspec import Struct, structs

from bus.auditing.at_rest import Asked
from bus.message import Message, ProviderId
from bus.messages.build import (
    ClaimRefused,
    Flavor,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceId,
    InstancePlaced,
    InstanceState,
)
from bus.messages.placement import ProvidersChanged, ProviderState, ProviderUsage
from moor.laboratory.load.orders import amounts_of

NEWS_MAX = 5
SLICE_S = 0.1


class News(Struct, frozen=True):
    """A line about a failure or retry, and the style in which it is drawn."""

    style: str
    text: str


class Tally:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        # Of the instances that are asked for.
        self.flavors: dict[InstanceId, Flavor] = {}
        self.began_s = time.monotonic()
        self.ended_s = self.began_s
        # Instances that have ended, in their end state.
        self.states: dict[InstanceId, InstanceState] = {}
        self.deleted: set[InstanceId] = set()
        self.refusals: dict[InstanceId, tuple[ClaimRefused, ...]] = {}
        self.providers: dict[ProviderId, ProviderState] = {}
        # How often any provider's traits changed.
        self.changes = 0
        self.ends_by_slice: dict[int, int] = {}
        self.news: deque[News] = deque(maxlen=NEWS_MAX)
        self.silent: dict[str, None] = {}

    def begin(self) -> None:
        """Start the clock: the first request is about to be sent."""
        self.began_s = self.ended_s = time.monotonic()

    def hear(self, message: Message) -> None:
        match message:
            case InstanceActive(instance=state) | InstanceFailed(instance=state):
                self._ended(state)
            case InstancePlaced(instance=state) if state.refusals and state.id not in self.refusals:
                self._won(state)
            case InstanceDeleted(instance=state) if state.id in self.states:
                self.deleted.add(state.id)
            case ProvidersChanged(providers=providers, usage=usages):
                for provider in providers:
                    self._changed(provider)
                for usage in usages:
                    self._used(usage)
            case _:
                pass

    @property
    def is_over(self) -> bool:
        return len(self.states) >= self.wanted

    @property
    def rate(self) -> float:
        return len(self.states) / max(self.ended_s - self.began_s, SLICE_S)

    @property
    def needed_alternates(self) -> list[InstanceState]:
        return [each for each in self.states.values() if each.state == "active" and each.failures]

    @property
    def conflicts(self) -> int:
        """How many claims placement refused because the host had changed after the scheduler chose it."""
        return sum(map(len, self.refusals.values()))

    @property
    def conflicts_won(self) -> int:
        """How many instances got a host although placement had refused a claim of theirs."""
        return len(self.refusals)

    def name_of(self, host: str) -> str:
        """The host's name for the screen; a subclass may look it up."""
        return host

    def asked(self, of_nodes: Flavor | None = None) -> dict[InstanceId, Asked]:
        """Each instance with its flavor and the last state that was heard. `of_nodes` is the flavor for bare metal."""
        heard = {id_: state.state for id_, state in self.states.items()} | dict.fromkeys(
            self.deleted, "deleted"
        )
        return {
            id_: Asked(heard.get(id_, ""), amounts_of(flavor), on_node=flavor == of_nodes)
            for id_, flavor in self.flavors.items()
        }

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.states.values())

    def _ended(self, state: InstanceState) -> None:
        known = self.states.get(state.id)
        if known is not None and known.sequence >= state.sequence:
            return
        self.states[state.id] = state
        self.ended_s = time.monotonic()
        if known is None:
            slice_ = int((self.ended_s - self.began_s) / SLICE_S)
            self.ends_by_slice[slice_] = self.ends_by_slice.get(slice_, 0) + 1
        for failure in state.failures:
            if failure.reason.startswith("no word"):
                self.silent[failure.host] = None
        if state.failures and state.state == "active":
            last = state.failures[-1]
            tried, now = self.name_of(last.host), self.name_of(state.host)
            self.news.append(News("yellow", f"{state.name}: {tried}, {short(last.reason)}; now on {now}"))
        elif state.state == "error":
            self.news.append(News("red", f"{state.name} ended in error: {state.reason or 'no valid host'}"))

    def _won(self, state: InstanceState) -> None:
        self.refusals[state.id] = state.refusals
        last = state.refusals[-1]
        how = "asked again, and got it" if last.host == state.host else f"took {self.name_of(state.host)}"
        self.news.append(News("cyan", f"{state.name}: {self.name_of(last.host)}, {last.reason}; {how}"))

    def _changed(self, provider: ProviderState) -> None:
        known = self.providers.get(provider.id)
        if known is not None and known.revision >= provider.revision:
            return
        self.providers[provider.id] = provider
        if known is not None and known.traits != provider.traits:
            self.changes += 1

    def _used(self, usage: ProviderUsage) -> None:
        known = self.providers.get(usage.id)
        if known is not None and known.revision < usage.revision:
            inventories = {
                resource: structs.replace(stock, used=usage.used.get(resource, 0))
                for resource, stock in known.inventories.items()
            }
            self.providers[usage.id] = structs.replace(
                known, generation=usage.generation, revision=usage.revision, inventories=inventories
            )


def short(reason: str) -> str:
    """The reason without its details: the part before the first colon."""
    return reason.partition(":")[0]
