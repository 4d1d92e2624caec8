"""Which peers get in, and what each may do: certificates, roles, and the calls of real daemons."""

import json
import subprocess

import pytest
from credentials import Ca
from harness import BIN, MODEL, wait_until
from replicas import ToyModel

EVERY_CALL = BIN / "tests/trust/every_call"
MANY_PULLS = BIN / "tests/trust/many_pulls"
PERMISSION_DENIED, UNAVAILABLE = 7, 14  # of a call; a peer without a role is disconnected
RESOURCE_EXHAUSTED = 8
ROLES = ("receiver", "operator", "observer")

# Call -> the roles that may make it.
AGENT_CALLS = {
    "GetStatus": "operator observer",
    "GetLayout": "receiver operator observer",
    "WatchVersions": "receiver operator observer",
    "OpenPull": "receiver",
    "CatchUp": "receiver",
    "RenewTickets": "receiver",
    "ClosePull": "receiver",
    "GetManifest": "receiver operator",
    "Verify": "operator",
    "DropModel": "operator",
    "Report": "receiver",
    "AwaitServed": "operator observer",
    "AwaitChanges": "operator observer",
    "GetTimeline": "operator observer",
}
RECEIVER_CALLS = {
    "GetStatus": "operator observer",
    "Pull": "operator",
    "WatchSyncs": "operator observer",
    "Rollback": "operator",
    "Verify": "operator",
    "GetReceiverLayout": "operator observer",
    "GetReceipts": "operator observer",
    "GetTimeline": "operator observer",
}


@pytest.fixture
def ca(cluster):
    ca = Ca(cluster.directory / "ca")
    ca.allow(("receiver*", "receiver"), *((role, role) for role in ROLES[1:]))
    return ca


def admitted_calls(daemon, service: str, files: "dict[str, object]", timeout_ms: int) -> "dict[str, bool]":
    """Every call of the service, and whether it was let in. A stream that was let in lasts until the timeout."""
    command = [EVERY_CALL, daemon.address, service, MODEL, str(timeout_ms), *(str(path) for path in files.values())]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {
        call: int(code) not in (PERMISSION_DENIED, UNAVAILABLE)
        for call, code in (line.split() for line in output.splitlines())
    }


# Of a pull, which is its opener's.
CALLS_OF_PULLS = ("CatchUp", "RenewTickets", "ClosePull")


@pytest.mark.parametrize("who", [*ROLES, "stranger", "critics"])
def test_every_call_is_for_its_roles_and_their_models_alone(cluster, ca, who):
    if who == "critics":
        ca.allow(("receiver*", "receiver"), *(("critics", role, "critic") for role in ROLES))
    agent = cluster.agent(**ca.daemon("agent"))
    receiver = cluster.receiver(agent, follow=False, **ca.daemon("receiver-0"))
    for daemon, service, table in [(agent, "TrainerAgent", AGENT_CALLS), (receiver, "RaasReceiver", RECEIVER_CALLS)]:
        wanted = {call: who in roles.split() for call, roles in table.items()}
        if who == "critics":  # it has every role, for another model
            wanted = {call: call in CALLS_OF_PULLS for call in table}

        def as_wanted(daemon=daemon, service=service, wanted=wanted) -> bool:
            found = admitted_calls(daemon, service, ca.files(who), timeout_ms=3_000)
            assert found.keys() == wanted.keys()
            refused = {call for call, admitted in found.items() if not admitted}
            assert refused <= {call for call, admitted in wanted.items() if not admitted}
            return found == wanted  # a refusal may be late on a busy machine

        wait_until(as_wanted, f"{service}'s calls as {who}")


def test_a_receiver_gets_the_models_of_its_role_and_no_other(cluster, ca):
    ca.allow(("receiver-0", "receiver", "actor"), ("operator", "operator"))
    agent = cluster.agent(**ca.daemon("agent"))
    actor, critic = ToyModel(blocks=4), ToyModel(blocks=4)
    with (
        agent.publisher(actor.tensors) as actor_publisher,
        agent.publisher(critic.tensors, model="critic") as critic_publisher,
    ):
        actor_publisher.publish(version=1, tensors=actor.step())
        critic_publisher.publish(version=1, tensors=critic.step())
        receiver = cluster.receiver(agent, models=("actor", "critic"), **ca.daemon("receiver-0"))
        receiver.credentials = agent.credentials = ca.files("operator")
        receiver.wait_for(actor.tensors)
        error = wait_until(lambda: receiver.model_status("critic")["last_error"], "critic's refusal is told")
        assert "spiffe://test/receiver-0" in error and "for model critic" in error and "role receiver" in error
        assert wait_until(lambda: "access_refused" in agent.log(), "the refusal is logged")
        assert agent.log().count("access_refused") == 1  # in a minute
        assert not receiver.file("critic").exists()

        ca.allow(("receiver-0", "receiver"), ("operator", "operator"))
        receiver.wait_for(critic.tensors, "critic")


def test_a_daemon_refuses_to_start_without_a_policy_that_can_be_read(cluster, ca):
    ca.policy.write_text('[[allow]]\nname = "a"\nrole = "king"\n')
    agent = cluster.agent(start=False, **ca.daemon("agent"))
    agent.process = subprocess.Popen(agent.command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log = agent.process.communicate(timeout=60)[1]
    assert agent.process.returncode == 78 and f"{ca.policy}:3" in log and "receiver, operator or observer" in log


def test_any_peer_gets_health_on_its_port_where_all_else_needs_a_certificate(cluster, ca):
    agent = cluster.agent(health_listen="127.0.0.1:0", **ca.daemon("agent"))
    receiver = cluster.receiver(agent, health_listen="127.0.0.1:0", **ca.daemon("receiver-0"))
    for daemon in (agent, receiver):
        assert daemon.ctl("health", "liveness").returncode != 0  # by TLS, without a certificate
        daemon.address = daemon.addresses["health"]
        assert daemon.ctl("health", "liveness").returncode == 0
        assert daemon.ctl("status").returncode != 0


def test_each_mismatch_of_tls_is_named_at_the_client_and_in_the_log_of_who_refused(cluster, ca):
    other = Ca(cluster.directory / "other-ca")
    agent = cluster.agent(**ca.daemon("agent"))
    plain = cluster.receiver(agent)
    own, others = ca.files("operator"), other.files("operator")
    cases = [
        (agent, others, "its certificate is not of a CA in tls-ca", "the peer left; its tls-ca may lack"),
        (agent, {**others, "tls_ca": own["tls_ca"]}, "closed the connection after the TLS", "certificate is refused"),
        (agent, {}, "at the first word, as a daemon with TLS does", "the peer speaks plaintext"),
        (plain, own, "it speaks no TLS 1.3", "the peer speaks TLS, and this daemon has no certificate"),
    ]
    for daemon, credentials, told, logged in cases:
        daemon.credentials = credentials
        answer = daemon.ctl("status")
        assert answer.returncode == 69 and told in answer.stderr and len(answer.stderr.splitlines()) == 1
        daemon.ctl("status")  # for the same reason: no further line

        def refusals(daemon=daemon, logged=logged) -> "list[dict]":
            lines = [json.loads(line) for line in daemon.log().splitlines() if '"connection_refused"' in line]
            return [line for line in lines if logged in line["message"]]

        [line] = wait_until(refusals, f"the log says: {logged}")
        assert (line["peer"], line["address"]) == ("127.0.0.1", daemon.address)
    plain.credentials = {}
    wait_until(lambda: "give tls-cert" in plain.model_status()["last_error"], "a receiver says it, too")


def test_an_observer_that_opens_too_many_streams_is_refused_and_the_receiver_syncs_on(cluster, ca):
    model = ToyModel(blocks=8)
    agent = cluster.agent(**ca.daemon("agent"))
    receiver = cluster.receiver(agent, **ca.daemon("receiver-0"))
    receiver.credentials = ca.files("observer")
    watch = receiver.ctl_command("watch")
    watchers = [
        subprocess.Popen(watch, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(20)
    ]
    try:
        wait_until(lambda: sum(watcher.poll() is not None for watcher in watchers) == 4, "those above 16 are refused")
        for refused in (watcher for watcher in watchers if watcher.poll() is not None):
            said = refused.communicate()[1]
            assert refused.returncode == 71 and "16 streams of syncs of spiffe://test/observer" in said
        with agent.publisher(model.tensors) as publisher:
            for version in range(1, 4):
                model.reach(publisher, version, receiver)
        receiver.credentials = ca.files("operator")
        assert receiver.ctl("watch", "--count", 1).returncode == 0
    finally:
        for watcher in watchers:
            watcher.kill()
            watcher.wait()
            watcher.stderr.close()


def test_a_receiver_that_opens_too_many_pulls_is_refused_and_another_syncs_on(cluster, ca):
    model = ToyModel(blocks=8)
    agent = cluster.agent(max_pulls=12, **ca.daemon("agent"))
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        arguments = [agent.address, MODEL, "5", *(str(path) for path in ca.files("receiver-greedy").values())]
        output = subprocess.run([MANY_PULLS, *arguments], check=True, capture_output=True, text=True).stdout
        for call, things in (("pull", "pulls"), ("standing", "standing pulls")):
            answers = [line.split(" ", 2)[1:] for line in output.splitlines() if line.startswith(call)]
            assert [int(code) for code, _ in answers] == 3 * [0] + 2 * [RESOURCE_EXHAUSTED]
            assert answers[-1][1].startswith(f"3 {things} of spiffe://test/receiver-greedy,")
            assert "are open, a quarter of --max-pulls" in answers[-1][1]
        receiver = cluster.receiver(agent, **ca.daemon("receiver-0"))
        agent.credentials = receiver.credentials = ca.files("operator")
        for version in (2, 3):
            model.reach(publisher, version, receiver)
        assert agent.model_status()["open_pulls"] >= 3  # the greedy one's are still there
        assert receiver.model_status()["failures"] == 0


def test_certificates_and_ca_change_under_eight_receivers_and_no_version_is_missed(cluster, ca):
    model = ToyModel(blocks=16)
    agent = cluster.agent(**ca.daemon("agent"))
    receivers = [cluster.receiver(agent, **ca.daemon(f"receiver-{i}")) for i in range(8)]
    everyone = ["agent", *(f"receiver-{i}" for i in range(8))]
    other = Ca(cluster.directory / "other-ca")
    other.issue(*everyone)
    both = cluster.directory / "both.crt"
    both.write_text("".join((root.directory / "ca.crt").read_text() for root in (ca, other)))
    old_operator = {**ca.files("operator"), "tls_ca": both}
    new_operator = {**other.files("operator"), "tls_ca": both}

    def trust(bundle) -> None:
        for name in everyone:
            (ca.directory / name / "ca.new").write_text(bundle.read_text())
            (ca.directory / name / "ca.new").replace(ca.directory / name / "ca.crt")

    def present_the_others() -> None:
        for name in everyone:
            for file in ("tls.key", "tls.crt"):
                (other.directory / name / file).replace(ca.directory / name / file)

    def everyone_answers(credentials, answer: bool = True) -> bool:
        for daemon in [agent, *receivers]:
            daemon.credentials = credentials
        return all(daemon.answers() == answer for daemon in [agent, *receivers])

    with agent.publisher(model.tensors) as publisher:
        published = 0

        def publish_some() -> None:
            nonlocal published
            for _ in range(3):
                published += 1
                publisher.publish(version=published, tensors=model.step())
                for receiver in receivers:
                    receiver.wait_for(model.tensors)

        publish_some()
        trust(both)
        publish_some()
        wait_until(lambda: everyone_answers(new_operator), "everyone trusts both CAs")
        present_the_others()
        publish_some()
        shows_new = {**new_operator, "tls_ca": other.directory / "ca.crt"}
        wait_until(lambda: everyone_answers(shows_new), "everyone shows a new certificate")
        trust(other.directory / "ca.crt")
        publish_some()
        wait_until(lambda: everyone_answers(old_operator, answer=False), "no daemon trusts the old CA")
        publish_some()
        assert everyone_answers(new_operator)
        for receiver in receivers:
            status = receiver.model_status()
            assert (status["held"]["version"], status["syncs"], status["failures"]) == (published, published, 0)


def test_rotated_files_of_no_use_are_logged_once_each_and_those_before_stay(cluster, ca):
    agent = cluster.agent(**ca.daemon("agent"))
    agent.credentials = ca.files("operator")
    other = Ca(cluster.directory / "other-ca")
    other.issue("agent")
    own, others = ca.directory / "agent", other.directory / "agent"

    def refusals() -> int:
        return agent.log().count('"tls_files_refused"')

    (others / "tls.key").replace(own / "tls.key")
    wait_until(lambda: refusals() == 1, "a key of another certificate is refused")
    assert "is not the key of certificate" in agent.log() and agent.answers()
    (own / "tls.key").chmod(0o644)
    wait_until(lambda: refusals() == 2, "a key that others may read is refused")
    assert "may be read by other users" in agent.log() and agent.answers()

    for file in ("tls.crt", "ca.crt"):
        (others / file).replace(own / file)
    (own / "tls.key").chmod(0o600)
    wait_until(lambda: '"tls_files_reloaded"' in agent.log(), "files that fit are taken")
    agent.credentials = other.files("operator")
    wait_until(agent.answers, "a peer of the new CA gets in")


def test_a_policy_is_asked_for_only_where_a_port_is_listened_on(cluster, ca):
    listening = cluster.agent(start=False, **ca.files("agent"))
    refused = subprocess.run(listening.command, capture_output=True, text=True)
    assert refused.returncode == 78 and "tls-policy is missing" in refused.stderr
    ca.allow(("receiver", "receiver"))
    agent = cluster.agent(**ca.daemon("agent"))
    receiver = cluster.receiver(agent, listen="", **ca.files("receiver"))  # seen through its socket
    model = ToyModel(blocks=1)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)


def test_lanes_listen_where_the_control_plane_does(cluster):
    agent = cluster.agent(start=False, listen="0.0.0.0:0", lane_listen="", allow_insecure_network="10.0.0.0/8")
    agent.start()
    lanes = json.loads(agent.log().splitlines()[0])["lanes"]
    assert lanes.startswith("0.0.0.0:") and not lanes.endswith(":7701")
