"""Asks `rabbitmqctl` which nodes a broker has and what they keep, and prints it for `moor broker declare`."""

import shutil
from collections.abc import Sequence

from rich.markup import escape

from bus.broker import Connection, Refusal
from bus.topology import Objects
from moor.broker.applications_command import rabbitmqctl
from moor.broker.deployments import BrokerDeployment
from moor.broker.replication import COLUMNS, BrokerNodes, nodes_in, questions_on_one_node, replication_of
from moor.options import fail, out

REPLACE = "--replace-questions"


async def declare_on(objects: Objects, connection: Connection) -> None:
    """Declare these. A queue of questions that stands on one node is refused by the broker: then say what ends that."""
    try:
        await connection.declare(objects)
    except Refusal as refused:
        if "x-queue-type" not in str(refused):
            raise
        advice = (
            f"this queue was declared while the broker had one node; {REPLACE} deletes such queues of questions and "
            "declares them anew"
            if objects.limits.replicates_questions
            else "this queue is kept on several nodes: name all nodes in the URL, with commas"
        )
        raise Refusal(f"{refused}; {advice}") from None


def replace_questions(deployment: BrokerDeployment, objects: Objects, ctl: Sequence[str]) -> None:
    """Delete the queues of questions that are on one node alone, so that they can be declared on several. Their questions are
    asked again.
    """
    if not objects.limits.replicates_questions:
        fail(f"{REPLACE} is for a broker of several nodes: name them all in its URL, with commas")
    for queue in questions_on_one_node(objects.queues, _nodes(deployment, ctl, _status(ctl))):
        rabbitmqctl(ctl, "delete_queue", queue, "--vhost", deployment.virtual_host)
        out.print(f"[green]deleted[/green] {escape(queue)}, which was on one node")


def show_replication(deployment: BrokerDeployment, objects: Objects, ctl: Sequence[str]) -> None:
    """Print what the nodes keep, if the broker has several, or its URL says so."""
    says_several = objects.limits.replicates_questions
    if shutil.which(ctl[0]) is None:
        out.print(
            f"what its nodes keep is not known: there is no {escape(ctl[0])} here (--ctl names another)",
            soft_wrap=True,
        )
        return
    status = _status(ctl)
    if not says_several and len(_read(status).nodes) == 1:
        return
    found = _nodes(deployment, ctl, status)
    try:
        said = replication_of(objects.queues, found, deployment.virtual_host)
    except ValueError as wrong:
        fail(
            f"what the nodes keep is not known: {wrong}; --ctl must name the rabbitmqctl of the broker at --bus"
        )
    for fact in said.facts:
        out.print(f"  {escape(fact)}", soft_wrap=True)
    for warning in said.warnings:
        out.print(f"[yellow]warning[/yellow]: {escape(warning)}", soft_wrap=True)


def _status(ctl: Sequence[str]) -> str:
    return rabbitmqctl(ctl, "cluster_status", "--formatter", "json", "--quiet")


def _nodes(deployment: BrokerDeployment, ctl: Sequence[str], status: str) -> BrokerNodes:
    listed = ("list_queues", "--vhost", deployment.virtual_host, "--quiet", "--no-table-headers", *COLUMNS)
    return _read(status, rabbitmqctl(ctl, *listed))


def _read(status: str, queues: str = "") -> BrokerNodes:
    try:
        return nodes_in(status, queues)
    except ValueError as wrong:
        fail(str(wrong))
