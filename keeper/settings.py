"""The settings of a keeper."""

from typing import Annotated

from msgspec import Meta, Struct

from kit.settings import Seconds, Section


class KeeperSettings(Struct, frozen=True):
    hooks_folder: Annotated[
        str,
        Meta(
            description="The folder with the programs that campaigns may run for an empty host, such as one that installs and restarts it. "
            "Campaigns name them, so whoever may begin one can run each program that is there. Empty: there are none."
        ),
    ] = ""
    controllers_file: Annotated[
        str,
        Meta(
            description="The file that names the controllers of hosts, by which the fences `redfish` and `ironic` switch these off. Empty: there is "
            "none, and a fence is a program of the folder of hooks."
        ),
    ] = ""
    kept_s: Annotated[
        Seconds,
        Meta(
            description="How long campaigns and their movements are kept after they have ended. Longer needs more space; shorter forgets sooner "
            "what was done."
        ),
    ] = 90 * 86_400


class KeeperPace(Struct, frozen=True):
    """How often a keeper looks, where no operator has a reason to change it. Tests do."""

    # How often campaigns are looked at; and how often a keeper that works on none looks for one.
    round_s: float = 0.4
    idle_s: float = 2.0
    # A campaign whose keeper is not heard of for so long goes on with another one. Much longer than a round takes.
    lease_s: float = 15.0
    # How often the guests of a host are listed although none of its movements has ended.
    list_s: float = 5.0
    # What could not be granted is planned again after this time.
    rest_s: float = 2.0
    prune_s: float = 600.0
    # How often policies of balance are looked at.
    balance_s: float = 10.0
    # How often guests are looked for that died.
    died_s: float = 5.0
    # How long each of them rests before it is started again: before the first time, the second time, and so on.
    rests_s: tuple[float, ...] = (0.0, 30.0, 120.0, 480.0)
    # Hosts of one rack fall silent within a few seconds of one another, as their heartbeats come. So long after it counts as down, no
    # host is taken for lost alone.
    spread_s: float = 5.0
    # A keeper waits so long for claims on a host without guests to end: a guest may be on its way there.
    claimed_s: float = 600.0
    # A guest of a lost host for which no host has room waits for it so long.
    room_s: int = 86_400


PACE = KeeperPace()
KEEPER = Section("keeper", KeeperSettings, "keepers")
