"""The messages to the process in which the real placement runs."""

from msgspec import Struct

from engine.inventories import ProviderState


class Question(Struct, frozen=True):
    version: str
    query: str


class World(Struct, frozen=True):
    """`traits` are all that exist, also those that no provider has."""

    traits: tuple[str, ...]
    states: tuple[ProviderState, ...]
    questions: tuple[Question, ...]
