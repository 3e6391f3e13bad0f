"""The books while a batch is being decided: accounts and lives that change in place, private to one fold.

Copying frozen values at every step of the fold would cost more than all its decisions. So the ledger is drafted here,
order by order, and turned into frozen changes once, at the end. Accounts are found by the integer of their id, as in the
ledger.
"""

from collections.abc import Iterable, Mapping

from bus.message import ConsumerId, ProviderId
from bus.messages.placement import Holder, ResourceAmount, ServerGroup
from placement_worker.core.accounts import Account
from placement_worker.core.ledger import ClaimChanges, Consumer, Ledger, Touched

# How much of which classes of which providers, in the order in which they were named.
Amounts = dict[Account, dict[str, int]]


def amounts_in(amounts: Amounts) -> tuple[ResourceAmount, ...]:
    return tuple(
        ResourceAmount(provider=account.row.id, resource=resource, amount=amount)
        for account, of_provider in amounts.items()
        for resource, amount in of_provider.items()
    )


class Life:
    """One consumer: its row as it is by now, and what it holds. Its host's account counts it as long as it holds
    something.
    """

    __slots__ = ("_accounts", "_host", "changed", "held", "is_gone", "loaded", "row")

    def __init__(
        self, row: Consumer, held: tuple[ResourceAmount, ...], accounts: Mapping[int, Account]
    ) -> None:
        self._accounts = accounts
        # The number of the host it lives on; -1, which is no provider's, if of none.
        self._host = row.host.int if held and row.host is not None else -1
        self.row = row
        self.held = self.loaded = held
        self.changed = False
        self.is_gone = False

    @property
    def is_new(self) -> bool:
        """Nothing was seen of it yet. Who came by a way that knows no attempts is seen by what it holds."""
        return not self.row.attempt and not self.held

    @property
    def has_ended(self) -> bool:
        return self.row.ended_at is not None

    @property
    def is_for_nothing(self) -> bool:
        """Its row was made just now and nothing became of it; or it vanishes."""
        return self.is_gone or not (self.changed or self.row.attempt or self.row.generation)

    def become(self, row: Consumer, held: tuple[ResourceAmount, ...]) -> None:
        host = row.host.int if held and row.host is not None else -1
        if host != self._host:
            self._count(self._host, -1)
            self._count(host, 1)
            self._host = host
        self.row = row
        self.held = held
        self.changed = True
        self.is_gone = False

    def _count(self, host: int, one: int) -> None:
        # A host whose provider is gone counts nobody.
        if (account := self._accounts.get(host)) is not None:
            account.consumers += one
            account.touched = True

    def vanish(self) -> None:
        """No attempt can ask for it any more: not even its row is kept."""
        self.become(Consumer(id=self.row.id), ())
        self.is_gone = True


class Draft:
    """A ledger that can be written in; `changes` is what was."""

    def __init__(self, ledger: Ledger) -> None:
        self._accounts = {number: Account(row) for number, row in ledger.providers.items()}
        self._lives = {
            number: Life(row, ledger.held.get(number, ()), self._accounts)
            for number, row in ledger.consumers.items()
        }
        self._groups: dict[int, ServerGroup] = {}
        self._claimed: list[Holder] = []
        self._ended: list[Holder] = []

    def account(self, provider: ProviderId) -> Account | None:
        return self._accounts.get(provider.int)

    def standing_account(self, provider: ProviderId) -> Account:
        """That of a provider which is known to exist, since something of it is held."""
        account = self.account(provider)
        if account is None:
            raise AssertionError(f"the ledger lacks provider {provider}, of which something is held")
        return account

    def life(self, consumer: ConsumerId) -> Life:
        return self._lives[consumer.int]

    def amounts_of(self, held: Iterable[ResourceAmount]) -> Amounts:
        amounts: Amounts = {}
        for amount in held:
            of_provider = amounts.setdefault(self.standing_account(amount.provider), {})
            of_provider[amount.resource] = of_provider.get(amount.resource, 0) + amount.amount
        return amounts

    def take(self, amounts: Amounts) -> None:
        for account, of_provider in amounts.items():
            used = account.used
            for resource, amount in of_provider.items():
                used[resource] += amount

    def free(self, amounts: Amounts) -> None:
        for account, of_provider in amounts.items():
            used = account.used
            for resource, amount in of_provider.items():
                # What is held of no inventory is left to the audit.
                if resource in used:
                    used[resource] -= amount
            account.touched = True

    def gain(self, gaining: Iterable[Account]) -> None:
        """These have new allocations, all by one claim: each of them moves by one generation, however often it is named."""
        for account in dict.fromkeys(gaining):
            account.generation += 1
            account.touched = True

    def join(self, group: ServerGroup | None) -> None:
        if group is not None:
            self._groups[group.id.int] = group

    def claimed(self, consumer: ConsumerId, attempt: int) -> None:
        self._claimed.append(Holder(consumer=consumer, attempt=attempt))

    def ended(self, consumer: ConsumerId, attempt: int) -> None:
        self._ended.append(Holder(consumer=consumer, attempt=attempt))

    def changes(self) -> ClaimChanges:
        changed = [life for life in self._lives.values() if life.changed]
        return ClaimChanges(
            consumers=tuple([life.row for life in changed if not life.is_gone]),
            forgotten=tuple([life.row.id for life in self._lives.values() if life.is_for_nothing]),
            held=tuple([(life.row.id, life.held) for life in changed if life.held is not life.loaded]),
            touched=tuple(
                [
                    Touched(account.row.id, account.generation, account.used, account.consumers)
                    for account in self._accounts.values()
                    if account.touched
                ]
            ),
            groups=tuple(self._groups.values()),
            claimed=tuple(self._claimed),
            ended=tuple(self._ended),
        )
