"""Logs in Ceph's object gateway, a real S3 store: the suites of stores, archiver and origins, and a fleet."""

import os
import subprocess

import pytest
from harness import BIN
from radosgw import RadosGateway
from replicas import ToyModel

pytestmark = pytest.mark.nightly
SUITES = ["common/objects/object_store_test", "raas_receiver/archive/archiver_test", "raas_receiver/origin/origin_test"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    missing = RadosGateway.missing()
    assert not missing, f"not installed: {', '.join(missing)}; deploy/install.sh --dev"
    gateway = RadosGateway(tmp_path_factory.mktemp("radosgw") / "ceph")
    yield gateway
    gateway.stop()


@pytest.mark.parametrize("suite", SUITES)
def test_the_suites_pass_over_a_gateway(gateway, suite):
    environment = {**os.environ, "LOCKSTEP_TEST_STORE": gateway.url("suites")}
    ran = subprocess.run([BIN / suite, "~[agent]"], env=environment, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stdout[-4000:]


def test_a_fleet_follows_a_log_in_a_gateway(cluster, gateway):
    agent = cluster.agent()
    model = ToyModel(blocks=64)
    writer = cluster.receiver(agent, name="writer", archive=gateway.url("fleet"))
    readers = [cluster.receiver(gateway.url("fleet"), name=f"reader-{n}", log_poll="100ms") for n in range(8)]
    with agent.publisher(model.tensors) as publisher:
        for version in range(1, 11):
            publisher.publish(version=version, tensors=model.step())
            for reader in readers:
                reader.wait_for(model.tensors)
    assert writer.model_status()["archive"]["failures"] == 0
