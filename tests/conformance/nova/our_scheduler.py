"""Starts `moor run nova-scheduler` in place of Nova's own scheduler."""

import os
import subprocess
import sys

from tests.conformance.nova.stack import ROOT, NotStartedError, NovaStack

MOOR = (sys.executable, "-m", "moor")


def our_scheduler(stack: NovaStack) -> None:
    prepare_our_scheduler(stack)
    start_our_scheduler(stack)


def prepare_our_scheduler(stack: NovaStack) -> None:
    """Put its variables into the stack."""
    stack.our_environment = {
        # As docs/nova.md maps the filters that the operations enable.
        "MOOR_SCHEDULER_FILTERS": "capabilities,image_properties,different_host,same_host,aggregate_extra_specs",
        # A new host that is mapped to its cell after it was first seen is known after this time.
        "MOOR_NOVA_READ_S": "20",
        "MOOR_NOVA_URL": stack.api.url,
        "MOOR_OPENSTACK_KEYSTONE_URL": f"{stack.places.stub}/v3",
        "MOOR_OPENSTACK_USER": "operator",
        "MOOR_OPENSTACK_PASSWORD": "nothing",
        "MOOR_NOVA_API_DB": f"mysql://scheduler@{stack.places.database}/nova_api",
        "MOOR_NOVA_PLACEMENT_URL": stack.places.placement,
    }


def start_our_scheduler(stack: NovaStack, name: str = "nova-scheduler", *flags: str, **more: str) -> int:
    """With these further flags and variables."""
    nova = ("--nova-bus", f"amqp://guest:guest@{stack.places.amqp}/nova")
    argv = (*MOOR, "run", "nova-scheduler", *nova, *flags)
    return stack.start("scheduler" if not flags else name, name, argv, **stack.our_environment, **more)


def run_moor(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        (*MOOR, *arguments),
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NotStartedError(
            f"moor {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout
