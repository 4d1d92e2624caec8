"""Where daemons listen, when the system chooses the ports: what they print, and the file that can be waited for."""

import json
import socket

from harness import Daemon, wait_until
from replicas import ToyModel
from test_bad_input import DAEMONS, UNAVAILABLE, command, run


def test_both_daemons_name_the_ports_that_they_got_and_remove_the_file_when_they_end(cluster):
    agent = cluster.agent(listen="127.0.0.1:0")
    receiver = cluster.receiver(agent)
    assert agent.addresses.keys() == {"grpc", "control", "lanes"}
    assert receiver.addresses.keys() == {"grpc", "control"}
    for daemon in (receiver, agent):
        for name, address in daemon.addresses.items():
            if name == "control":
                continue
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=60).close()
        line = json.dumps(daemon.addresses, separators=(",", ":"))
        assert daemon.address_file.read_text() == line + "\n" and line in daemon.log().splitlines()
        assert daemon.stop() == 0 and not daemon.address_file.exists()


def test_the_file_of_a_killed_daemon_is_replaced_by_the_next_one(cluster):
    agent = cluster.agent()
    agent.kill()
    assert agent.address_file.exists()
    agent.address_file.write_text("of the past")
    Daemon.start(agent)  # and not Agent.start(), which removes the file
    wait_until(lambda: agent.address_file.exists() and "past" not in agent.address_file.read_text(), "the file is new")
    agent.wait_until_listening()
    assert agent.answers()


def test_receivers_get_the_lane_port_that_the_system_chose_also_under_another_host_name(cluster):
    model = ToyModel(blocks=4)
    agent = cluster.agent(lane_advertise="localhost:0")
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)


@DAEMONS
def test_a_port_that_is_taken_is_said_with_the_option_that_names_another(cluster, daemon):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        options = ["listen", "health_listen", "metrics_listen", *(["lane_listen"] if daemon == "trainer_agent" else [])]
        for option in options:
            result = run(command(daemon, cluster.directory, **{option: taken}))
            flag = "--" + option.replace("_", "-")
            assert result.returncode == UNAVAILABLE
            assert f"{flag}: cannot listen on {taken}: address already in use" in result.stderr, option


@DAEMONS
def test_a_socket_that_is_taken_is_said_with_the_option_that_names_another(cluster, daemon):
    sockets = {"trainer_agent": ["socket", "control_socket", "local_socket"]}.get(
        daemon, ["control_socket", "engine_socket"]
    )
    taken = cluster.directory / "taken.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(taken))
        other.listen()
        for option in sockets:
            result = run(command(daemon, cluster.directory, **{option: taken}))
            flag = "--" + option.replace("_", "-")
            assert result.returncode == UNAVAILABLE
            assert f"{flag}: another process already listens at {taken}" in result.stderr, option
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(taken))  # still there


@DAEMONS
def test_an_address_file_that_cannot_be_written_is_named(cluster, daemon):
    result = run(command(daemon, cluster.directory, address_file=cluster.directory / "nowhere" / "addresses.json"))
    assert result.returncode == UNAVAILABLE and "nowhere/addresses.json" in result.stderr
