"""Logs in an S3-compatible store: the suites of stores and origins over it, and what goes wrong on the way to one."""

import json
import os
import re
import subprocess
import time

import pytest
from harness import BIN, wait_until
from replicas import ToyModel
from s3 import S3, FaultProxy, corrupt, cut, lost, stall, status


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    store = S3(tmp_path_factory.mktemp("s3") / "store")
    yield store
    store.stop()


@pytest.fixture
def fresh(s3, request):
    """A prefix of the test's own, and that all that it asked for was signed as botocore signs it."""
    before = len(s3.refusals())
    yield re.sub(r"\W+", "-", request.node.name)
    assert s3.refusals()[before:] == []


@pytest.fixture
def proxy(s3):
    proxy = FaultProxy(s3.address)
    yield proxy
    proxy.close()


def archive_of(receiver) -> dict:
    return receiver.model_status()["archive"]


def wait_archived(receiver, version: int) -> None:
    wait_until(lambda: archive_of(receiver)["newest"]["version"] == version, f"{version} is in the log")


@pytest.mark.parametrize(
    "suite",
    ["common/objects/object_store_test", "raas_receiver/archive/archiver_test", "raas_receiver/origin/origin_test"],
)
def test_the_suites_pass_over_a_store(s3, fresh, suite):
    environment = {**os.environ, "LOCKSTEP_TEST_STORE": s3.url(fresh)}
    ran = subprocess.run([BIN / suite, "~[agent]"], env=environment, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stdout[-4000:]


def test_a_fleet_follows_a_log_in_a_store(cluster, s3, fresh):
    agent = cluster.agent()
    model = ToyModel(blocks=16)
    writer = cluster.receiver(agent, name="writer", archive=s3.url(fresh))
    readers = [cluster.receiver(s3.url(fresh), name=f"reader-{i}", log_poll="100ms") for i in range(3)]
    with agent.publisher(model.tensors) as publisher:
        for version in range(1, 6):
            publisher.publish(version=version, tensors=model.step())
            for reader in readers:
                reader.wait_for(model.tensors)
    writer.kill()
    late = cluster.receiver(s3.url(fresh), name="late")
    late.wait_for(model.tensors)
    for daemon in (writer, *readers, late):
        assert "secret-of" not in daemon.log() and "AKFIRST" not in daemon.log()
    assert late.model_status()["source"] == f"http://{s3.address}/weights/{fresh}"


def test_keys_may_change_while_daemons_run_and_come_from_a_command(cluster, s3, fresh, tmp_path):
    agent = cluster.agent()
    model = ToyModel(blocks=4)
    writer = cluster.receiver(agent, name="writer", archive=s3.url(fresh))
    reader = cluster.receiver(s3.url(fresh), name="reader", log_poll="100ms")
    try:
        with agent.publisher(model.tensors) as publisher:
            model.reach(publisher, 1, reader)
            s3.rotate("AKSECOND", token="a-session")
            model.reach(publisher, 2, reader)
            # The keys are a command's, and end soon. The daemons run the command again before that.
            ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 303))
            said = {"AccessKeyId": "AKTHIRD", "SecretAccessKey": "secret-of-AKTHIRD", "Expiration": ends}
            runs = tmp_path / "runs"
            command = f"echo >> {runs}; echo '{json.dumps(said)}'"
            s3.rotate("AKTHIRD", credentials=f"[default]\ncredential_process = {command}\n")
            model.reach(publisher, 3, reader)
            before = len(runs.read_text())
            wait_until(lambda: len(runs.read_text()) > before, "the command is run again")
            # Refused, said without a word of the keys, and taken up again.
            s3.write_credentials(s3.text_of("AKNOBODY"))
            publisher.publish(version=4, tensors=model.step())
            wait_until(lambda: "InvalidAccessKeyId" in archive_of(writer)["last_error"], "the writer says why")
            assert "secret" not in writer.log() and "AKNOBODY" not in archive_of(writer)["last_error"]
            s3.write_credentials(s3.text_of("AKTHIRD"))
            reader.wait_for(model.tensors)
            wait_until(lambda: not archive_of(writer)["last_error"], "the writer writes again")
    finally:
        for daemon in (writer, reader):
            daemon.stop()  # or a request that is under way would be refused after the next line
        s3.rotate("AKFIRST")
        s3.log.write_text("")  # what was refused here was to be


FAULTS = {
    "busy": ("", status(503, "SlowDown")),
    "broken": ("", status(500, "InternalError")),
    "lost": ("PUT .*/head", lost),
    "cut": ("GET .*/(chunk|delta|layout)/", cut),
    "corrupt": ("GET .*/(chunk|delta|layout)/", corrupt),
    "late": ("GET .*/(chunk|delta|layout)/", status(404, "NoSuchKey")),
    "slow": ("", stall(0.3)),
    "expired": ("", status(400, "ExpiredToken")),
    "raced": ("PUT .*/head", status(409, "ConditionalRequestConflict")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_on_the_way_is_got_over_and_nothing_wrong_is_served(cluster, s3, fresh, proxy, name):
    pattern, fault = FAULTS[name]
    agent = cluster.agent()
    model = ToyModel(blocks=16)
    url = s3.url(fresh, proxy.address)
    writer = cluster.receiver(agent, name="writer", archive=url)
    reader = cluster.receiver(url, name="reader", log_poll="100ms")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        planned = proxy.plan(pattern, fault, times=4)
        for version in range(2, 5):
            publisher.publish(version=version, tensors=model.step())
            time.sleep(0.2)
        wait_archived(writer, 4)
        reader.wait_for(model.tensors)
        assert planned.hits > 0
        assert reader.ctl("verify", "--agent", agent.address).returncode == 0
    assert archive_of(writer)["state"] == "following"


def test_an_object_that_stays_damaged_is_named_and_not_served(cluster, s3, fresh, proxy):
    agent = cluster.agent()
    model = ToyModel(blocks=8)
    cluster.receiver(agent, name="writer", archive=s3.url(fresh))
    reader = cluster.receiver(s3.url(fresh, proxy.address), name="reader", log_poll="100ms")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        before = {name: tensor.copy() for name, tensor in model.tensors.items()}
        proxy.plan("GET .*/delta/", corrupt)
        publisher.publish(version=2, tensors=model.step())
        wait_until(lambda: "SHA-256 differs" in reader.model_status()["last_error"], "the reader says what is damaged")
        assert re.search(rf"/weights/{fresh}/actor/delta/[0-9a-f]{{64}} is damaged", reader.log())
        reader.wait_for(before)
        proxy.heal()
        reader.wait_for(model.tensors)


def test_a_head_that_goes_back_is_refused(cluster, s3, fresh, proxy):
    agent = cluster.agent()
    model = ToyModel(blocks=4)
    cluster.receiver(agent, name="writer", archive=s3.url(fresh))
    reader = cluster.receiver(s3.url(fresh, proxy.address), name="reader", log_poll="100ms")
    with agent.publisher(model.tensors) as publisher:
        heads = []
        proxy.plan("GET .*/head", lambda message: heads.append(message) or message)
        model.reach(publisher, 1, reader)
        old = next(head for head in reversed(heads) if head.status == 200)
        model.reach(publisher, 2, reader)
        proxy.heal()
        proxy.plan("GET .*/head", lambda _: old)
        wait_until(lambda: "goes back" in reader.model_status()["last_error"], "the reader refuses it")
        reader.kill()  # it remembers
        reader.start()
        wait_until(lambda: "goes back" in reader.model_status()["last_error"], "the reader refuses it still")
        assert reader.model_status()["held"]["version"] == 2
        proxy.heal()
        model.reach(publisher, 3, reader)


def test_a_store_that_is_away_is_waited_for(cluster, s3, fresh, proxy):
    agent = cluster.agent()
    model = ToyModel(blocks=8)
    url = s3.url(fresh, proxy.address)
    writer = cluster.receiver(agent, name="writer", archive=url)
    reader = cluster.receiver(url, name="reader", log_poll="100ms")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        proxy.down = True
        for version in range(2, 6):
            publisher.publish(version=version, tensors=model.step())
            writer.wait_for(model.tensors)  # it goes on as a receiver
        wait_until(lambda: archive_of(writer)["waiting_deltas"] == 4, "deltas wait")
        wait_until(lambda: archive_of(writer)["state"] == "failing", "the writer says so")
        proxy.down = False
        reader.wait_for(model.tensors, timeout_s=90)
        wait_archived(writer, 5)
        assert writer.log().count("archive_begun") == 1


def test_a_store_beyond_loopback_is_not_reached_in_plaintext_unless_its_network_is_named(cluster):
    url = "s3://weights/x?endpoint=http://192.0.2.7:9000"
    for option in ({"source": url}, {"archive": url}):
        receiver = cluster.receiver("127.0.0.1:1", start=False, **option)
        refused = subprocess.run(receiver.command, capture_output=True, text=True)
        assert refused.returncode == 78 and "192.0.2.7 is beyond loopback" in refused.stderr
