"""Writes moor/client/sync_client.pyi, by which type checkers know the methods of `SyncClient`: it has those of `Client`, made in a loop."""

import inspect
from pathlib import Path
from types import FunctionType

from moor.client import Client, SentRequest
from moor.client.client import ClientThread

FILE = Path(__file__).parents[2] / "moor" / "client" / "sync_client.pyi"

HEAD = """# Written by `python -m tools.pages.client_stub`.

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from moor.client.client import Client, ClientThread, SyncListing, SyncSentRequest
from moor.client.requests import Listing, SentRequest

_T = TypeVar("_T")
_P = TypeVar("_P")
_Args = ParamSpec("_Args")

def _waits(
    method: Callable[Concatenate[Client, _Args], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[SyncClient, _Args], _T]: ...
def _orders(
    method: Callable[Concatenate[Client, _Args], Coroutine[Any, Any, SentRequest]],
) -> Callable[Concatenate[SyncClient, _Args], SyncSentRequest]: ...
def _lists(
    method: Callable[Concatenate[Client, _Args], Listing[_T, _P]],
) -> Callable[Concatenate[SyncClient, _Args], SyncListing[_T, _P]]: ...
def _iterates(
    method: Callable[Concatenate[Client, _Args], AsyncGenerator[_T]],
) -> Callable[Concatenate[SyncClient, _Args], Iterator[_T]]: ...

class SyncClient(ClientThread):
"""


def stub() -> str:
    names = [
        f"    {name} = {_kind(method)}(Client.{name})\n"
        for name, method in inspect.getmembers(Client, inspect.isfunction)
        if not name.startswith("_") and not hasattr(ClientThread, name)
    ]
    return HEAD + "".join(names)


def _kind(method: FunctionType) -> str:
    if inspect.isasyncgenfunction(method):
        return "_iterates"
    if not inspect.iscoroutinefunction(method):
        return "_lists"
    return "_orders" if inspect.signature(method).return_annotation is SentRequest else "_waits"


if __name__ == "__main__":
    FILE.write_text(stub())
