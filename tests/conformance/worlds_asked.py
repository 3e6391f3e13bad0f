"""What is said to the process in which the real placement runs."""

from msgspec import Struct

from bus.messages.placement import ProviderState


class Question(Struct, frozen=True):
    version: str
    query: str


class World(Struct, frozen=True):
    """`traits` are those that exist, whether anyone bears them or not."""

    traits: tuple[str, ...]
    states: tuple[ProviderState, ...]
    questions: tuple[Question, ...]
