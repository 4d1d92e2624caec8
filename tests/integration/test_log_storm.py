"""Many readers, a writer that dies again and again, a store that is away: nothing wrong is served, and all converge."""

import contextlib
import random
import time

import pytest
from harness import wait_until
from replicas import ToyModel
from s3 import S3, FaultProxy

pytestmark = pytest.mark.nightly
READERS = 100


@pytest.fixture
def log(cluster) -> str:
    path = cluster.directory / "log"
    path.mkdir()
    return f"file://{path}"


def test_a_hundred_readers_start_at_once(cluster, log):
    agent = cluster.agent()
    model = ToyModel(blocks=4)
    writer = cluster.receiver(agent, name="writer", archive=log)
    with agent.publisher(model.tensors) as publisher:
        for version in range(1, 4):
            model.reach(publisher, version, writer)
        wait_until(lambda: writer.model_status()["archive"]["newest"]["version"] == 3, "it is in the log")
        readers = [cluster.receiver(log, name=f"reader-{n}", threads=1, lanes=1, start=False) for n in range(READERS)]
        begin = time.monotonic()
        for reader in readers:
            super(type(reader), reader).start()
        for reader in readers:
            reader.wait_for(model.tensors, timeout_s=300)
        started = time.monotonic() - begin
        publisher.publish(version=4, tensors=model.step())
        begin = time.monotonic()
        for reader in readers:
            reader.wait_for(model.tensors, timeout_s=120)
        print(f"{READERS} readers: first version in {started:.1f} s, the next in {time.monotonic() - begin:.1f} s")
    receivers = agent.model_status()["receivers"]
    assert len(receivers) == 1, "readers of a log ask the agent for nothing"


def test_a_writer_that_is_killed_fifty_times_writes_no_whole_model_again(cluster, log):
    random.seed(50)
    agent = cluster.agent()
    model = ToyModel(blocks=64)
    writer = cluster.receiver(agent, name="writer", archive=log)
    reader = cluster.receiver(log, name="reader")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, reader)
        for version in range(2, 52):
            publisher.publish(version=version, tensors=model.step())
            time.sleep(random.random() * 0.2)
            writer.kill()
            writer.start()
        begin = time.monotonic()
        reader.wait_for(model.tensors)
        print(f"after the last of 50 deaths: {time.monotonic() - begin:.2f} s to the newest version")
    assert writer.log().count("archive_begun") == 1
    assert reader.model_status()["failures"] == 0


def test_a_store_is_away_for_a_minute(cluster, tmp_path):
    with contextlib.ExitStack() as opened:
        store = S3(tmp_path / "store")
        opened.callback(store.stop)
        proxy = FaultProxy(store.address)
        opened.callback(proxy.close)
        url = store.url("away", proxy.address)
        agent = cluster.agent()
        model = ToyModel(blocks=16)
        writer = cluster.receiver(agent, name="writer", archive=url)
        readers = [cluster.receiver(url, name=f"reader-{n}", log_poll="100ms") for n in range(8)]
        publisher = opened.enter_context(agent.publisher(model.tensors))
        publisher.publish(version=1, tensors=model.step())
        for reader in readers:
            reader.wait_for(model.tensors)
        proxy.down = True
        for version in range(2, 14):
            publisher.publish(version=version, tensors=model.step())
            time.sleep(5)
        proxy.down = False
        begin = time.monotonic()
        for reader in readers:
            reader.wait_for(model.tensors, timeout_s=120)
        print(f"after a minute without a store: {time.monotonic() - begin:.1f} s to the newest version")
        assert writer.log().count("archive_begun") == 1
        assert store.refusals() == []
