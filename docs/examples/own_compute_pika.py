"""A compute with plain pika: the short one. Take it to begin your own, in any language. own_compute.py, with aio-pika, also runs
something and answers audits.

    python own_compute_pika.py amqp://moor-compute-CELL:PASSWORD@BROKER/ CELL FILE HOST [HOST ...]

docs/write-a-compute.md has the rules that it keeps. It remembers in FILE what is on its hosts. Nothing runs there:
`carry_out` is where a hypervisor would be told.
"""

import json
import sqlite3
import sys
import time
import uuid
from typing import Any
from urllib.parse import unquote, urlsplit

import pika

BEAT_S = 5
INVENTORIES = {"VCPU": {"total": 8, "allocation_ratio": 4.0}, "MEMORY_MB": {"total": 16384}}
Message = dict[str, Any]
Key = tuple[str, str, int]


class Attempts(dict[Key, Message]):
    """What is on each host, by host, instance and attempt; and in a file, so that a restart forgets nothing."""

    def __init__(self, file: str) -> None:
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute("CREATE TABLE IF NOT EXISTS attempts (key PRIMARY KEY, kept)")
        for key, kept in self._db.execute("SELECT key, kept FROM attempts"):
            super().__setitem__(tuple(json.loads(key)), json.loads(kept))

    def __setitem__(self, key: Key, kept: Message) -> None:
        self._db.execute("INSERT OR REPLACE INTO attempts VALUES (?, ?)", (json.dumps(key), json.dumps(kept)))
        super().__setitem__(key, kept)

    def on(self, host: str, after: str = "") -> list[tuple[str, int]]:
        there = [key[1:] for key, kept in self.items() if key[0] == host and kept["state"] != "gone"]
        return sorted(each for each in there if each[0] > after)


def carry_out(order: Message, state: str) -> str:
    """Tell the hypervisor: whatever it has of this attempt becomes `state` (runs, stopped, gone). It may come twice."""
    print(order["type"], order["instance"], "->", state, flush=True)
    return state


def obey(order: Message, attempts: Attempts, hosts: Message) -> Message:
    """Do what the conductor orders, and return the answer. A repeated or late order changes nothing."""
    if order["type"] == "host.check":
        held = attempts.on(order["host"], order.get("after") or "")
        return {
            "type": "host.holds",
            "number": order["number"],
            "after": order.get("after"),
            "attempts": held,
        }
    key = (order["host"], order["instance"], order["attempt"])
    kept = attempts.get(key)
    match order["type"]:
        case "destroy":
            kept = {"state": carry_out(order, "gone"), "rank": 0}
        case "spawn" | "receive":
            if why := why_not_built(order, attempts, hosts) if kept is None else "":
                return {"type": "spawn.failed", "reason": why}
            new = "stopped" if order.get("stopped") else "runs"
            kept = kept or {"state": carry_out(order, new), "rank": 0}
        case "stop" | "start" | "respawn":
            if kept is None or kept["state"] == "gone":
                return refused(order, "the host has nothing of it")
            kept = changed(order, kept)
        case unknown:
            raise ValueError(f"unknown order {unknown!r}")
    attempts[key] = kept
    return answer_of(kept)


def why_not_built(order: Message, attempts: Attempts, hosts: Message) -> str:
    """For an order to receive, the instance leaves its source, which must have stopped it, unless the move is live."""
    if order["host"] not in hosts:
        return "this compute has no such host"
    if order["type"] == "receive":
        key = (order["source"], order["instance"], order["source_attempt"])
        source = attempts.get(key)
        if source is None or source["state"] != ("runs" if order.get("live") else "stopped"):
            return "the source does not have it, or has not stopped it"
        attempts[key] = {**source, "state": "stopped"}
    return ""


def changed(order: Message, kept: Message) -> Message:
    """Of orders that overtake each other the later counts: stop 7, start 7, respawn 8, stop 9."""
    rank, save_as = 2 * order["number"] + (order["type"] == "start"), order.get("save_as", "")
    if rank < kept["rank"] or (rank == kept["rank"] and not save_as):
        return kept
    state = carry_out(order, "stopped" if order["type"] == "stop" else "runs")
    rebuild = order["number"] if order["type"] == "respawn" else 0
    return {"state": state, "rank": rank, "rebuild": rebuild, "saved": save_as}


def answer_of(kept: Message) -> Message:
    """What the attempt is now: the answer to each order that was obeyed, and to a repeated or a late one."""
    number = kept["rank"] // 2
    match kept["state"]:
        case "gone":
            return {"type": "destroyed"}
        case _ if kept.get("rebuild"):
            return {"type": "redeployed", "number": kept["rebuild"]}
        case "runs":
            return {"type": "spawned", "number": number}
    return {"type": "stopped", "number": number, "saved": kept.get("saved", "")}


def refused(order: Message, why: str) -> Message:
    about = {"number": order["number"], "failure": why}
    match order["type"]:
        case "start":
            return {"type": "spawn.failed", "number": order["number"], "reason": why}
        case "respawn":
            return {"type": "redeployed", "is_active": False, **about}
    return {"type": "stopped", **about}


def main(url: str, cell: str, file: str, *names: str) -> None:
    # The id of a host is that of its root provider, for ever: here it follows from the names.
    hosts = {str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{cell}")): name for name in names}
    attempts = Attempts(file)
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=20)
    user = unquote(urlsplit(url).username or "guest")
    properties = pika.BasicProperties(content_type="application/json", delivery_mode=2, user_id=user)

    def say(exchange: str, message: Message, cause: str = "") -> None:
        """Publish it, and wait until the broker has it. Nobody needs to listen to events; all else must reach a queue."""
        envelope = {"message": {"cell": cell, **message}, "id": str(uuid.uuid4()), "cause": cause}
        key, body = f"{message['type']}.{cell}", json.dumps(envelope)
        channel.basic_publish(exchange, key, body, properties, mandatory=exchange != "moor.events")

    def on_parcel(_: Any, method: Any, __: Any, body: bytes) -> None:
        is_read = True
        for line in body.splitlines():  # several orders may share one parcel
            try:
                envelope = json.loads(line)
                order = envelope["message"]
                answer = obey(order, attempts, hosts)
            except (KeyError, TypeError, ValueError) as wrong:
                print("cannot read", line, repr(wrong), file=sys.stderr, flush=True)
                is_read = False
                continue
            about = {key: order[key] for key in ("host", "instance", "attempt") if key in order}
            say(f"moor.cell.{cell}", {**about, **answer}, envelope.get("id", ""))
        # Only now: if this program dies before, the order comes again. What it cannot read becomes a dead letter.
        if is_read:
            channel.basic_ack(method.delivery_tag)
        else:
            channel.basic_reject(method.delivery_tag, requeue=False)

    def beat() -> None:
        say("moor.events", {"type": "host.beat", "hosts": [*hosts]})
        connection.call_later(BEAT_S, beat)

    for host, name in hosts.items():
        held, now = attempts.on(host), time.time_ns()
        tree = {"id": host, "name": name, "inventories": INVENTORIES, "traits": ["COMPUTE_NODE"]}
        facts = {"id": host, "name": name, "hypervisor_type": "none", "instances": len(held)}
        say(
            "moor.placement", {"type": "inventory.report", "root": host, "providers": [tree], "sequence": now}
        )
        say("moor.events", {"type": "host.state", "hosts": [facts], "sequence": now})
        say(f"moor.cell.{cell}", {"type": "host.holds", "host": host, "number": 0, "attempts": held})
    channel.basic_consume(f"compute.{cell}.work", on_parcel)
    beat()
    print("ready:", *names, flush=True)
    channel.start_consuming()


if __name__ == "__main__":
    main(*sys.argv[1:])
