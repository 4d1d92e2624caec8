"""lockstepctl against both daemons: what it says is true, and its exit status is."""

import json
import os
import subprocess

import pytest
from harness import LOCKSTEPCTL, MODEL, Receiver, wait_until
from replicas import ToyModel, read_file

UNAVAILABLE = 69


@pytest.fixture
def model():
    return ToyModel(blocks=8)


@pytest.fixture
def agent(cluster):
    return cluster.agent()


@pytest.fixture
def publisher(agent, model):
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        yield publisher


@pytest.fixture
def receiver(cluster, agent, publisher, model) -> Receiver:
    receiver = cluster.receiver(agent)
    receiver.wait_for(model.tensors)
    return receiver


def test_status_of_the_agent_tells_models_versions_and_receivers(agent, publisher, receiver, model):
    model.reach(publisher, 2, receiver)
    status = agent.model_status()
    assert status["run"] == publisher.run
    assert status["newest_version"] == 2
    assert status["model_bytes"] == publisher.data_bytes
    assert status["tensors"] == len(model.tensors)
    assert [(delta["base"], delta["target"]) for delta in status["deltas"]] == [(1, 2)]
    assert status["receivers"][0]["receiver"] == receiver.name


def test_status_of_the_receiver_tells_what_it_holds_and_where(publisher, receiver):
    status = receiver.model_status()
    assert status["held"] == {"run": publisher.run, "version": 1}
    assert status["served_version"] == 1
    assert status["current_path"] and status["last_error"] == ""


@pytest.mark.parametrize("subcommand", ["status", "versions"])
def test_tables_for_people_name_the_model(agent, receiver, subcommand):
    for daemon in (agent, receiver):
        result = daemon.ctl(subcommand)
        assert result.returncode == 0 and MODEL in result.stdout


def test_versions_lists_the_newest_one_and_its_deltas(agent, publisher, receiver, model):
    model.reach(publisher, 2, receiver)
    (held_by_agent,), (held_by_receiver,) = agent.ask("versions"), receiver.ask("versions")
    assert held_by_agent["version"] == 2
    assert [(delta["base"], delta["target"]) for delta in held_by_agent["deltas"]] == [(1, 2)]
    assert held_by_receiver["current"] == {"run": publisher.run, "version": 2}


def test_layout_is_the_same_from_both_daemons_and_matches_the_file(agent, receiver):
    layouts = [daemon.ask("layout", MODEL) for daemon in (agent, receiver)]
    assert layouts[0] == layouts[1]
    tensors = {tensor["name"]: (tensor["dtype"], tensor["shape"]) for tensor in layouts[0]["tensors"]}
    assert tensors == {name: (dtype, shape) for name, (dtype, shape, _) in read_file(receiver.file()).items()}


def test_verify_recomputes_equal_digests_on_both_sides(agent, receiver):
    digests = [daemon.ask("verify", MODEL)["computed_digest"] for daemon in (agent, receiver)]
    assert digests[0] == digests[1]


def test_rollback_makes_the_previous_version_current_until_the_next_pull(publisher, receiver, model):
    first = model.copy()
    model.reach(publisher, 2, receiver)
    assert receiver.ctl("rollback", MODEL).returncode == 0
    receiver.wait_for(first)
    assert receiver.model_status()["state"].lower().endswith("held")
    receiver.kill()
    receiver.start()
    receiver.wait_for(first)
    assert receiver.model_status()["state"].lower().endswith("held")
    assert receiver.ctl("pull", MODEL).returncode == 0
    receiver.wait_for(model.tensors)
    receiver.kill()
    receiver.start()
    assert not receiver.model_status()["state"].lower().endswith("held")


def test_a_rollback_that_skips_a_version_follows_again_with_the_next(publisher, receiver, model):
    first = model.copy()
    model.reach(publisher, 2, receiver)
    assert "at version 1 and follows again" in receiver.ctl("rollback", "--not", "2").stdout
    receiver.kill()
    receiver.start()
    receiver.wait_for(first)
    assert "waiting, not 2" in receiver.ctl("status").stdout
    assert receiver.ctl("rollback", "--to", "7").returncode == 75
    model.reach(publisher, 3, receiver)
    assert "not 2" not in receiver.ctl("status").stdout


def test_health_tells_readiness_only_once_it_is_true(cluster, agent, model):
    receiver = cluster.receiver(agent)
    services = [(agent, "trainer-agent"), (receiver, "raas-receiver")]
    for daemon, name in services:
        assert daemon.ctl("health", f"{name}-liveness").returncode == 0
        assert daemon.ctl("health", f"{name}-readiness").returncode != 0
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)
        receiver.wait_for(model.tensors)
    for daemon, name in services:
        wait_until(lambda: daemon.ctl("health", f"{name}-readiness").returncode == 0, f"{name} is ready")
        assert daemon.ctl("health", "no-such-service").returncode != 0


def test_an_unknown_model_is_named(agent, receiver):
    for daemon in (agent, receiver):
        result = daemon.ctl("verify", "no-such-model")
        assert result.returncode != 0 and "no-such-model" in result.stderr


def test_the_daemon_of_this_host_is_found(cluster, agent):
    """In a mount namespace where /run is a directory of the cluster."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    run = cluster.directory / "run"
    (run / "raas-receiver").mkdir(parents=True)
    receiver = cluster.receiver(agent, control_socket=run / "raas-receiver/control.sock")
    status = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind "$0" /run && exec "$@"',
        run,
        LOCKSTEPCTL,
        "--json",
        "status",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    found = subprocess.run(status, env=environment, capture_output=True, text=True)
    assert found.returncode == 0 and json.loads(found.stdout)["name"] == receiver.name, found.stderr


def test_top_looks_again_and_again_also_while_the_daemon_is_away(agent, publisher):
    command = agent.ctl_command("--json", "top", "--count", "3")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert json.loads(top.stdout.readline())["models"][0]["newest_version"] == 1
        agent.kill()
        assert ["error" in json.loads(line) for line in top.stdout] == [True, True]
    assert top.returncode == UNAVAILABLE
