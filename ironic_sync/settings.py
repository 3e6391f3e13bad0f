"""What an operator may tune of a daemon that keeps bare-metal nodes."""

from typing import Literal

from msgspec import Struct

from bus.configuration.settings import require_positive
from bus.configuration.tuning import Section
from bus.topology import IRONIC, IRONIC_EVENTS, IRONIC_TOPIC
from bus.workers.inbox import Inbox


class IronicSettings(Struct, frozen=True, kw_only=True):
    # A daemon is a member of the ring while its lease lasts, by the database's clock. When the lease is over, the others
    # take its nodes.
    lease_s: float = 10.0
    # How often the lease is renewed, and how long the database may take before the daemon asks it again.
    renew_s: float = 2.0
    renew_wait_s: float = 3.0
    # A daemon stops acting on its nodes when its lease has less than this left: for what it began just before.
    lease_margin_s: float = 3.0
    # How often a daemon looks who the members are, and whether nodes are without a live owner.
    look_s: float = 0.5
    # How often a daemon compares all its nodes with the ring: a node whose instance is gone may belong to another by now.
    balance_s: float = 30.0
    # How many rows are read, or change their owner, in one transaction.
    page: int = 1000

    # Two notifications of different publishers that are nearer than this have no order: the node is read again.
    skew_ms: int = 2000
    # How often all nodes are read from Ironic and compared, and all rows reviewed; how often nodes in doubt are looked for, and how many of these
    # are read at once.
    sweep_s: float = 300.0
    doubts_s: float = 5.0
    # How often Ironic is asked which nodes changed lately. This finds the changes of which no notification came.
    changes_s: float = 20.0
    reads_at_once: int = 16
    # How many nodes are reported at once (a few such batches may wait for their answers), and how soon is tried again what
    # placement did not take.
    reports_at_once: int = 100
    report_again_s: float = 10.0
    # How often a daemon vouches for its nodes.
    beat_s: float = 5.0

    # For how many nodes Ironic is asked for the next step of a deploy at once, however many it works on. How often a daemon
    # looks for those that are due: an order that another daemon took is found so.
    deploys_at_once: int = 10
    due_s: float = 0.5
    # How often a node that Ironic works on is read though no notification came, and how often the conductor is told that
    # Ironic still works on it. The conductor gives up an attempt of which it hears nothing (`deploy_timeout_s`).
    deploy_read_s: float = 15.0
    progress_s: float = 120.0
    # A step that Ironic did not take is tried again after this, then twice that, and so on.
    deploy_retry_s_first: float = 1.0
    deploy_retry_s_max: float = 60.0
    # If Ironic loses more nodes at once than these, they are held, not removed: another Ironic may answer, or this one may
    # let us see less. The limits are a number, and a share of the nodes that a daemon knows. After so long it is believed.
    missing_few: int = 5
    missing_share: float = 0.2
    missing_believed_s: float = 3600.0
    # A node whose provider something else keeps in placement: `leave` the provider alone, or `take` it over.
    foreign_providers: Literal["leave", "take"] = "leave"
    # How long the row of a node is kept after Ironic deleted it and placement let go of it.
    deleted_kept_s: float = 7 * 86400.0

    # The names of Ironic's exchange, and of the topics of its versioned notifications; and of the queue in which they wait for the
    # daemons, which all daemons of one Ironic share.
    exchange: str = IRONIC
    topics: tuple[str, ...] = (IRONIC_TOPIC,)
    queue: str = IRONIC_EVENTS

    # How the daemon, and `moor`, log in to Ironic: not at all, by HTTP's basic authentication, or by Keystone's tokens. A user
    # and password in Ironic's URL are basic authentication too.
    auth: Literal["none", "basic", "keystone"] = "none"
    user: str = ""
    password: str = ""
    # With Keystone: its URL, the domain of the user, and what the token is for. Or an application credential instead of all
    # but the URL: it is bound to a user and a project.
    keystone_url: str = ""
    user_domain: str = "Default"
    scope: Literal["project", "system"] = "project"
    project: str = "service"
    project_domain: str = "Default"
    application_credential_id: str = ""
    application_credential_secret: str = ""
    # Which of Ironic's addresses in Keystone's catalogue is used, if no URL of Ironic is set. An empty region is any.
    interface: Literal["public", "internal", "admin"] = "public"
    region: str = ""
    # By which certificates Ironic and Keystone are verified, if not the system's; and the certificate, with its key, by which they
    # know us. PEM files. A key that is in the file of its certificate needs no file.
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    # How patient the client of Ironic's REST API is, and how much it takes in.
    rest_connect_s_max: float = 5.0
    rest_answer_s_max: float = 30.0
    rest_answer_bytes_max: int = 64 * 1024 * 1024
    rest_connections_max: int = 10
    # How often a request is made before its error counts, and the pauses between.
    rest_tries_max: int = 5
    rest_retry_delay_s_first: float = 0.2
    rest_retry_delay_s_max: float = 5.0

    def __post_init__(self) -> None:
        require_positive(
            self,
            [name for name in self.__struct_fields__ if not isinstance(getattr(self, name), str | tuple)],
        )
        # This checks the names.
        _ = self.inbox
        if self.renew_s + self.renew_wait_s >= self.acting_s:
            raise ValueError(
                f"renew_s and renew_wait_s make {self.renew_s + self.renew_wait_s:g}, must be less than lease_s minus "
                f"lease_margin_s ({self.acting_s:g}): else one slow renewal stops the daemon"
            )
        if self.deploy_retry_s_first > self.deploy_retry_s_max:
            raise ValueError(
                f"deploy_retry_s_first is {self.deploy_retry_s_first}, must be at most deploy_retry_s_max "
                f"({self.deploy_retry_s_max})"
            )
        if self.look_s >= self.lease_s:
            raise ValueError(f"look_s is {self.look_s}, must be less than lease_s ({self.lease_s})")

    @property
    def inbox(self) -> Inbox:
        """Where Ironic's notifications are read."""
        return Inbox(exchange=self.exchange, topics=self.topics, queue=self.queue)

    @property
    def acting_s(self) -> float:
        """How long after a renewal a daemon may act on its nodes."""
        return self.lease_s - self.lease_margin_s


# Addresses and names are stated in another way (bus/configuration/addresses.py, flags).
SECTION = Section(
    "ironic", IronicSettings, others=("url", "bus_url", "db_url", "name", "cell", "groups", "shards", "sim_")
)
