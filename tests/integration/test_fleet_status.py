"""What status and health say is so: receivers that come and go, engines that refuse, names that are wrong or shared."""

import json

import pytest
from harness import MODEL, wait_until
from ports import ReservedPort
from proxy import FaultProxy
from replicas import ToyModel

import lockstep

ENGINE = f"raas-receiver-engine/{MODEL}"


def listed(agent) -> "list[dict]":
    """Every receiver in the agent's status, of models that are open or not."""
    status = agent.ask("status")
    return [receiver for model in status["models"] + status["unopened"] for receiver in model["receivers"]]


def ready(receiver, service: str = "readiness") -> bool:
    return receiver.ctl("health", service).returncode == 0


def test_the_agents_status_lists_receivers_with_what_they_hold_and_serve_and_since_when_they_are_gone(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    hook = 'test "$LOCKSTEP_VERSION" != 2 || { echo engine says no; exit 1; }'
    good, bad = (
        cluster.receiver(agent, name="good"),
        cluster.receiver(agent, name="bad", engine=f"hook:{hook}", engine_attempts=1),
    )

    def states() -> "dict[str, tuple]":
        return {
            entry["receiver"]: (entry["presence"], entry["held"]["version"], entry["served_version"])
            for entry in listed(agent)
        }

    with agent.publisher(model.tensors) as publisher:
        for version in (1, 2):
            publisher.publish(version=version, tensors=model.step())
            wait_until(lambda: states().get("good") == ("connected", version, version), f"good serves {version}")
        wait_until(lambda: states()["bad"] == ("connected", 2, 1), "bad holds 2 and serves 1")
        wait_until(
            lambda: (
                "engine says no" in next(entry for entry in listed(agent) if entry["receiver"] == "bad")["last_error"]
            ),
            "the refusal is listed",
        )
        status = agent.ask("status")
        assert 0 < status["models"][0]["newest_committed_unix_ns"] <= status["now_unix_ns"]
        assert bad.model_status()["last_error_unix_ns"] > 0
        assert bad.model_status()["held_committed_unix_ns"] == status["models"][0]["newest_committed_unix_ns"]
        assert good.model_status()["last_sync_unix_ns"] > 0

        good.kill()
        wait_until(lambda: states()["good"] == ("gone", 2, 2), "good is gone")
        agent.stop()
        agent.start()
        wait_until(lambda: states() == {"bad": ("connected", 2, 1)}, "a restarted agent is told again")
        good.start()
        wait_until(lambda: states().get("good") == ("connected", 2, 2), "good is back")
        publisher.publish(version=3, tensors=model.step())
        wait_until(lambda: states() == {"good": ("connected", 3, 3), "bad": ("connected", 3, 3)}, "both are at 3")


def test_two_receivers_of_one_name_are_listed_as_two_and_said_to_be(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        twins = [
            cluster.receiver(
                agent,
                name="twin",
                root=cluster.directory / f"root-{i}",
                control_socket=cluster.directory / f"twin-{i}.sock",
                start=False,
            )
            for i in (1, 2)
        ]
        for i, twin in enumerate(twins):
            twin.address_file = cluster.directory / f"twin-{i}.json"
            twin.command[-1] = str(twin.address_file)
            twin.start()
        wait_until(
            lambda: [(entry["name_shared"], entry["held"]["version"]) for entry in listed(agent)] == [(True, 1)] * 2,
            "both are listed",
        )
        assert len({entry["instance"] for entry in listed(agent)}) == 2
        assert {twin.ask("status")["instance"] for twin in twins} == {entry["instance"] for entry in listed(agent)}
        warnings = [json.loads(line) for line in agent.log().splitlines() if "receiver_name_shared" in line]
        assert [(line["level"], line["receiver"]) for line in warnings] == [("warn", "twin")]
        twins[0].kill()
        wait_until(lambda: [entry["name_shared"] for entry in listed(agent)] == [False], "one is left")


def test_a_model_that_no_trainer_has_opened_is_said_by_both_daemons(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        receiver = cluster.receiver(agent, models=("actro",), name="typo")
        wait_until(
            lambda: receiver.model_status("actro")["last_error"].endswith(f" has no actro; it has {MODEL}"),
            "the receiver says it",
        )
        status = agent.ask("status")
        assert [entry["name"] for entry in status["unopened"]] == ["actro"]
        assert [entry["receiver"] for entry in listed(agent)] == ["typo"]
        assert "no trainer has opened actro" in agent.ctl("status").stdout
        assert "model_not_open" in agent.log() and "model_not_open" in receiver.log()
        with agent.publisher(model.tensors, model="actro") as late:
            late.publish(version=1, tensors=model.tensors)
            receiver.wait_for(model.tensors, model="actro")
            wait_until(lambda: receiver.model_status("actro")["last_error"] == "", "it is over")
        assert agent.ask("status")["unopened"] == []


def test_a_receiver_is_ready_once_its_engine_serves_some_version_and_stays_so_when_it_refuses_the_next(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    allowed = cluster.directory / "allowed"
    receiver = cluster.receiver(agent, engine=f"hook:grep -q $LOCKSTEP_VERSION {allowed}", engine_attempts=1)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        wait_until(lambda: ready(receiver, "raas-receiver-replica"), "there is a verified replica")
        wait_until(lambda: receiver.model_status()["engine_failures"] >= 1, "the engine refuses it")
        assert not ready(receiver) and not ready(receiver, ENGINE)
        allowed.write_text("1")
        wait_until(lambda: ready(receiver), "the engine serves it")
        wait_until(lambda: ready(receiver, ENGINE), "requests may be sent to it")
        publisher.publish(version=2, tensors=model.step())
        wait_until(lambda: receiver.model_status()["held"]["version"] == 2, "it has the next")
        wait_until(lambda: "version 2" in receiver.model_status()["last_error"], "the engine refuses that")
        assert ready(receiver) and ready(receiver, "liveness") and ready(receiver, ENGINE)
    # What it serves is of a run that is over.
    allowed.write_text("none")
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        wait_until(lambda: not ready(receiver, ENGINE), "nothing of the new run is served")
        assert ready(receiver)
        allowed.write_text("1 2")
        publisher.publish(version=2, tensors=model.step())
        wait_until(lambda: ready(receiver, ENGINE), "a version of the new run is served")


def test_a_receiver_that_could_not_sync_for_long_is_not_ready_if_asked_for(cluster):
    model = ToyModel(blocks=2)
    port = ReservedPort()
    with FaultProxy(port.address, 1, ["clean"]) as lanes:
        agent = cluster.agent(lane_listen=port.address, lane_advertise=lanes.address)
        patient = cluster.receiver(agent, name="patient")
        strict = cluster.receiver(agent, name="strict", unready_after="300ms")
        with agent.publisher(model.tensors) as publisher:
            publisher.publish(version=1, tensors=model.step())
            for receiver in (patient, strict):
                wait_until(lambda: ready(receiver), f"{receiver.name} is ready")
            lanes.close()  # versions are announced, and no byte of them comes
            publisher.publish(version=2, tensors=model.step())
            wait_until(lambda: not ready(strict), "strict is behind for too long")
            assert ready(patient) and ready(strict, "raas-receiver-replica") and ready(strict, "liveness")
            wait_until(lambda: strict.model_status()["last_error"] != "", "it says why")
            assert strict.model_status()["held"]["version"] == 1


def test_the_next_version_of_a_receiver_is_waited_for_of_whichever_run(cluster):
    model, agent = ToyModel(blocks=2), cluster.agent()
    receiver = lockstep.control.Receiver(cluster.receiver(agent).address)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=40, tensors=model.step())
        before = receiver.wait(40, timeout=60).held
    with pytest.raises(lockstep.DeadlineError, match="40 is held"):
        receiver.wait(1, timeout=0.2, after=before)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        assert receiver.wait(1, timeout=60, after=before).held == lockstep.control.VersionRef(publisher.run, 1)
