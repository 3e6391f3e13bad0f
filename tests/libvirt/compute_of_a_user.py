"""A compute's driver under a user and a umask, with a libvirt that root runs: `python -m tests.libvirt.compute_of_a_user FOLDER URI USER UMASK`

It builds a guest, reads its console, rebuilds it, saves its disk and destroys it, and prints a line for each.
"""

import asyncio
import os
import sys
from pathlib import Path

from compute_sim.core.attempts import AttemptRecord
from tests.libvirt.driven_host import FIRST, Host
from tests.libvirt.libvirt_cloud import write_image
from tests.waiting import wait_for

# It must write more than virtlogd puts into a file.
TEXT = "guest is up" * 20 + "\r\n"


def main(folder: str, uri: str, user: str, mask: str) -> None:
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    os.umask(int(mask, 8))
    host = Host(Path(folder), uri, domain_type="qemu")
    write_image(host.settings.images_folder / "tiny", TEXT)
    web = host.built()
    print("built", flush=True)
    (attempt,) = (Path(folder) / "instances" / "h1").iterdir()
    until_read(host, web)
    print("console read", flush=True)
    wait_for((attempt / "console.log.0").exists, "virtlogd begins another file")
    until_read(host, web)
    print("console read after virtlogd began another file", flush=True)
    assert (failure := host.work_of(host.respawn(2)).failure) == "", failure
    print("rebuilt", flush=True)
    assert (failure := host.end_of(host.stop(5, save_as=f"{FIRST}-5", project="shop"))) == "", failure
    print("saved", flush=True)
    assert (failure := host.destroy()) == "", failure
    assert not attempt.exists()
    print("gone", flush=True)
    host.driver.close()


def until_read(host: Host, web: AttemptRecord) -> None:
    wait_for(
        lambda: asyncio.run(host.driver.console(web, -1000, 1000)).text,
        "the guest has written",
        lambda text: b"guest is up" in text,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
