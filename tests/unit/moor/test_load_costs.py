"""Which processes' CPU time `moor load` counts, and how it shows the cost."""

import os
import socket
from functools import partial

from laboratory.load.kernel import listener_of, process_cpu_s, process_tree_cpu_s
from laboratory.load.measuring import Clocks, Meter


def test_a_server_is_found_by_the_port_it_listens_on_if_it_is_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        assert listener_of(f"amqp://guest@127.0.0.1:{port}/", ("python", "pytest")) == os.getpid()
        # A proxy of another name is not the server, and its CPU time is not the server's.
        assert isinstance(listener_of(f"amqp://guest@127.0.0.1:{port}/", ("beam",)), str)
    assert listener_of(f"amqp://guest@127.0.0.1:{port}/", ("python",)) == "not on this machine"
    assert listener_of("amqp://guest@a:5672,b:5672/", ("beam",)) == "its URL names several hosts"
    assert listener_of("amqp://guest@192.0.2.1/", ("beam",)) == "not on this machine"


def test_a_process_tree_spends_the_sum_of_its_members() -> None:
    before_s = process_tree_cpu_s(os.getpid())
    alone_s = process_cpu_s(os.getpid())

    assert before_s > 0
    assert process_tree_cpu_s(os.getpid()) >= alone_s


def test_the_cost_is_shown_in_total_by_process_and_over_time() -> None:
    spent = {"busy": 0.0, "idle": 1.0}
    meter = Meter(Clocks({name: partial(spent.__getitem__, name) for name in spent}), 100)

    meter.read(0)
    for ended in range(1, 100):
        spent["busy"] += 10e-6
        meter.progress(ended)
    spent["busy"] += 10e-6
    meter.read(100)

    told = {name: round(us, 3) for name, us in meter.us_each().items()}
    assert told == {"total": 10.0, "busy": 10.0, "idle": 0.0}
    assert [round(us, 3) for us in meter.parts_us()] == [10.0] * 10
