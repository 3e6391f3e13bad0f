"""`SyncClient`: each method of `Client`, for programs without asyncio.

sync_client.pyi says the types of the methods. `python -m tools.pages.client_stub` writes it.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any

from moor.client.client import Client, ClientThread, SyncListing, SyncSentRequest
from moor.client.requests import Listing, SentRequest


class SyncClient(ClientThread):
    """`Client` for programs without asyncio: `with SyncClient(url) as moor:`. Several threads may use it at once."""


def _in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(self: SyncClient, /, *args: Any, **kwargs: Any) -> Any:
        found = method(self.client, *args, **kwargs)
        if isinstance(found, Listing):
            return SyncListing(found, self)
        if isinstance(found, AsyncGenerator):
            return self.iterate(found)
        done = self.run(found)
        return SyncSentRequest(done, self) if isinstance(done, SentRequest) else done

    return called


for _name, _method in inspect.getmembers(Client, inspect.isfunction):
    if not _name.startswith("_") and not hasattr(SyncClient, _name):
        setattr(SyncClient, _name, _in_thread(_method))
