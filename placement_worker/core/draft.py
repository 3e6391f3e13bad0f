"""The books while a batch is being decided: accounts and lives that change in place, private to one fold.

Copying frozen values at every step of the fold would cost more than all its decisions. So the ledger is drafted here,
order by order, and turned into frozen changes once, at the end. Accounts are found by the integer of their id, as in the
ledger.
"""

from collections.abc import Iterable

from bus.message import ConsumerId, ProviderId
from bus.messages.placement import Holder, ResourceAmount, ServerGroup
from placement_worker.core.accounts import Account, Stock
from placement_worker.core.ledger import ClaimChanges, Consumer, Ledger

# How much of which stocks, in the order in which they were named.
Amounts = dict[Stock, int]


class Life:
    """One consumer: its row as it is by now, and what it holds."""

    __slots__ = ("changed", "held", "is_gone", "loaded", "row")

    def __init__(self, row: Consumer, held: tuple[ResourceAmount, ...]) -> None:
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

    def become(self, row: Consumer, held: tuple[ResourceAmount, ...]) -> None:
        self.row = row
        self.held = held
        self.changed = True
        self.is_gone = False

    def vanish(self) -> None:
        """No attempt can ask for it any more: not even its row is kept."""
        self.become(Consumer(id=self.row.id), ())
        self.is_gone = True


class Draft:
    """A ledger that can be written in; `changes` is what was."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._accounts: dict[int, Account] = {}
        self._lives: dict[int, Life] = {}
        self._groups: dict[int, ServerGroup] = {}
        self._claimed: list[Holder] = []
        self._ended: list[Holder] = []

    def account(self, provider: ProviderId) -> Account | None:
        number = provider.int
        account = self._accounts.get(number)
        if account is None:
            row = self._ledger.providers.get(number)
            if row is None:
                return None
            account = self._accounts[number] = Account(row)
        return account

    def standing_account(self, provider: ProviderId) -> Account:
        """That of a provider which is known to exist, since something of it is held."""
        account = self.account(provider)
        if account is None:
            raise AssertionError(f"the ledger lacks provider {provider}, of which something is held")
        return account

    def life(self, consumer: ConsumerId) -> Life:
        number = consumer.int
        life = self._lives.get(number)
        if life is None:
            life = Life(self._ledger.consumers[number], self._ledger.held.get(number, ()))
            self._lives[number] = life
        return life

    def amounts_of(self, held: Iterable[ResourceAmount]) -> Amounts:
        amounts: Amounts = {}
        for amount in held:
            stock = self.standing_account(amount.provider).stock(amount.resource)
            amounts[stock] = amounts.get(stock, 0) + amount.amount
        return amounts

    def take(self, amounts: Amounts) -> None:
        for stock, amount in amounts.items():
            stock.used += amount

    def free(self, amounts: Amounts) -> None:
        for stock, amount in amounts.items():
            stock.used -= amount
            stock.account.touched = True

    def gain(self, gaining: Iterable[Stock]) -> None:
        """These have new allocations, all by one claim: each of their providers moves by one generation."""
        for account in {stock.account for stock in gaining}:
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
        touched = [account for account in self._accounts.values() if account.touched]
        return ClaimChanges(
            consumers=tuple([life.row for life in changed if not life.is_gone]),
            forgotten=self._forgotten(),
            held=tuple([(life.row.id, life.held) for life in changed if life.held is not life.loaded]),
            used=tuple(
                [
                    (account.row.id, stock.resource, stock.used)
                    for account in touched
                    for stock in account.stocks.values()
                    if stock.inventory is not None and stock.used != stock.inventory.used
                ]
            ),
            generations=tuple([(account.row.id, account.generation) for account in touched]),
            groups=tuple(self._groups.values()),
            claimed=tuple(self._claimed),
            ended=tuple(self._ended),
        )

    def _forgotten(self) -> tuple[ConsumerId, ...]:
        """Rows that were made for nothing, and those that vanish."""
        return tuple(
            [
                row.id
                for row in self._ledger.consumers.values()
                if not row.attempt
                and ((life := self.life(row.id)).is_gone or not (life.changed or life.row.generation))
            ]
        )
