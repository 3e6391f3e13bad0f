"""Every command that asks the bus, run as an application's user on a real broker: it works, or says what to do instead; and none tells
anything of hosts but those of the project's own instances.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from moor.client import Client
from moor.commands import names as names_of_commands
from tests.stories.cloud import Cloud
from tests.stories.moor.moor_process import Result, moor, moor_json, started
from tests.stories.moor.test_moor_applications import HOST, OperatorAccess, a_name, operator_access

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.timeout(400)]

# They ask no bus, or are for who runs the cloud.
OF_OPERATORS = {"up", "demo", "load", "run", "settings", "db", "nova", "broker", "dead"}
# The hosts have more room than `HOST`, so their amounts are nowhere else; the project's instance is on `HOST`.
VAULT, SPARE, NOTE = "vault-17", "spare-18", "fan swap by ann"
SECRETS = (VAULT, SPARE, NOTE, "7919", "7907", "7918", "7906")

# By command: the exit code, and a part of what is printed.
WORKS: Mapping[str, tuple[int, str]] = {
    "boot --vcpus 8000 --name no": (1, "no host for no among 3"),
    "boot --vcpus 1 --trait CUSTOM_NOPE": (1, "no host has CUSTOM_NOPE"),
    f"boot --vcpus 8000 --host {VAULT} --name there": (1, "no host for there"),
    "plan --vcpus 8000": (1, "0 more fit on 0 of 3 hosts"),
    "plan --vcpus 7910 --trait CUSTOM_NOPE": (1, "no host has CUSTOM_NOPE"),
    "explain web": (0, HOST),
    "explain big --now": (0, "with less VCPU than 8000"),
    "show web": (0, HOST),
    "show big": (0, "no host for big among 3"),
    "show nonesuch": (1, "there is no instance"),
    "instance show web": (0, HOST),
    "list": (0, HOST),
    "instance list --state error": (0, "big"),
    "history web": (0, HOST),
    "history big": (0, "no valid host"),
    "resize web --vcpus 8000 --no-wait": (1, "removed by capacity"),
    f"migrate web --to {VAULT} --no-wait": (1, "no valid host"),
    "live-migrate web --to nonesuch --no-wait": (1, "nonesuch: no host of this name is known"),
    f"live-migrate web --to {VAULT[:-1]} --no-wait": (1, "no host of this name is known"),
    "shelve nonesuch": (1, "there is no instance"),
    "unshelve web --no-wait": (1, "to unshelve"),
    "start web --no-wait": (0, ""),
    "stop nonesuch": (1, "there is no instance"),
    "reboot nonesuch": (1, "there is no instance"),
    "rebuild web --image nonesuch": (1, "nonesuch"),
    "console nonesuch": (1, "there is no instance"),
    "delete nonesuch": (1, "nonesuch"),
    "migration confirm web": (1, "web"),
    "group create pair --policy anti-affinity": (0, "pair"),
    "group list": (0, "trio"),
    "group show trio": (0, "trio"),
    "flavor list": (0, ""),
    "image list": (0, ""),
    "device-profile list": (0, ""),
    "quota usage shop": (0, "VCPU"),
    "quota show shop": (1, "there is no quota of project"),
}
FOR_ADMINS = "operators and admin applications"
REFUSED: Mapping[str, str] = {
    "plan --vcpus 1 --hosts": FOR_ADMINS,
    f"plan --drain {SPARE}": FOR_ADMINS,
    "list --project bank": "name a project of this application",
    "quota usage bank": "name a project of this application",
    "candidates VCPU=1": FOR_ADMINS,
    "migration list": FOR_ADMINS,
    "host list": FOR_ADMINS,
    f"host show {SPARE}": FOR_ADMINS,
    "host capabilities": FOR_ADMINS,
    f"host set {SPARE} down": "operators",
    f"evacuate {SPARE}": "operators",
    "cell list": FOR_ADMINS,
    "aggregate list": FOR_ADMINS,
    "provider list": "operators",
    "quota list": "name a project of this application",
    "quota set shop VCPU=1": "operators",
    "flavor create m9 --vcpus 1": "operators",
    "audit": "operators",
    "status": "operators",
    "events host.#": "operators",
    "events instance.# --project bank": "operators",
    "node list": "",
    "top": "",
    "application list": "operators",
}


async def prepared(setup: Cloud, operator: OperatorAccess, names: list[str]) -> dict[str, str]:
    """An application's variables: its project has an instance, one that found no host, and a group."""
    url = await operator.add(a_name(names), "--project", "shop")
    mine = {"MOOR_BUS_URL": url, "MOOR_PROJECT": "shop"}
    await moor_json("boot", "--vcpus", "1", "--name", "web", **mine)
    for name, vcpu in ((VAULT, 7919), (SPARE, 7907)):
        await setup.add_host(name, vcpu=vcpu)
    await setup.until_reported(VAULT, SPARE)
    async with Client(setup.brokers.at_api("operator"), project="") as root:
        await root.set_host(VAULT, "draining", reason=NOTE)
    await moor("boot", "--vcpus", "8000", "--name", "big", **mine)
    await moor("group", "create", "trio", "--policy", "affinity", **mine)
    return mine


async def test_each_command_of_an_application_works_or_says_what_to_do_and_tells_nothing_of_other_hosts(
    tmp_path: Path,
) -> None:
    covered = {each.split()[0] for each in (*WORKS, *REFUSED)}
    assert covered | OF_OPERATORS == {*names_of_commands()}
    async with operator_access(tmp_path) as (setup, operator, names):
        mine = await prepared(setup, operator, names)
        at_once = asyncio.Semaphore(3)
        wrong: list[str] = []

        async def run(line: str, *form: str) -> Result:
            async with at_once, started(*line.split(), *form, **mine) as process:
                try:
                    ran = await process.ended(within_s=45)
                except TimeoutError:
                    ran = Result(-1, "", "it does not end")
            told = (ran.out + ran.err).replace(line, "").replace(f"'{VAULT}'", "").replace(f"'{SPARE}'", "")
            wrong.extend(f"{line} {form} tells {each}: {told}" for each in SECRETS if each in told)
            return ran

        async def works(line: str, code: int, part: str) -> None:
            ran = await run(line)
            if ran.code != code or part not in ran.out + ran.err:
                wrong.append(f"{line}: {ran}")
            await run(line, "-o", "json")

        async def refused(line: str, part: str) -> None:
            ran = await run(line)
            told = ran.out + ran.err
            if not ran.code or part not in told or "Traceback" in told or not told:
                wrong.append(f"{line}: {ran}")

        async with asyncio.TaskGroup() as tasks:
            for line, (code, part) in WORKS.items():
                tasks.create_task(works(line, code, part))
            for line, part in REFUSED.items():
                tasks.create_task(refused(line, part))

    assert not wrong, "\n".join(wrong)
