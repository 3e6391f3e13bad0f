"""What each page shows: all pages that ask schedulers."""

from moor.dashboard.group_pages import GroupPages
from moor.dashboard.host_pages import HostPages
from moor.dashboard.instance_pages import InstancePages
from moor.dashboard.live_instances import LiveInstances
from moor.dashboard.overview_pages import OverviewPages
from moor.dashboard.why_pages import WhyPages


class Pages(OverviewPages, InstancePages, LiveInstances, HostPages, GroupPages, WhyPages):
    """The pages, each kind from its own file."""
