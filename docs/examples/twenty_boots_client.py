"""Boots twenty instances with the Python client, all at once, and waits for the end of each.

    python twenty_boots_client.py [URL [PROJECT]]

Without a URL it connects as the `moor` commands do: to a `moor up` on this machine, or as MOOR_BUS_URL says.
"""

import asyncio
import sys

from moor.client import Client, ClientError, Flavor, InstanceState, NotDone

BOOTS = 20
SMALL = Flavor(name="small", vcpus=1, ram_mb=512, root_gb=1)


async def boot(moor: Client, name: str) -> InstanceState:
    request = await moor.boot(SMALL, name=name)
    (state,) = await request.until_done()
    return state


async def main(url: str = "", project: str | None = None) -> int:
    async with Client(url, project=project) as moor:
        names = [f"web-{number}" for number in range(1, BOOTS + 1)]
        ends = await asyncio.gather(*(boot(moor, name) for name in names), return_exceptions=True)
    active = 0
    for name, end in zip(names, ends, strict=True):
        match end:
            case InstanceState():
                active += 1
                print(name, end.id, end.state, end.host)
            case NotDone():
                print(name, end.states[0].id, end.states[0].state, end.reason)
            case ClientError():
                print(name, type(end).__name__, end, f"request {end.request_id}")
            case _:
                raise end
    print(f"{active} of {BOOTS} are active")
    return 0 if active == BOOTS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
