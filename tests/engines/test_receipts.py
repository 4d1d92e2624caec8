"""Receipts: which weights an engine served when, joined to bytes and signed; and the log, which gives these bytes back."""

import json
import subprocess
import time

import pytest
from credentials import key_pair
from engine_ranks import Job, attach, build, differences, fall_asleep, wake
from harness import LOCKSTEPCTL, MODEL, wait_until
from ranks import Ranks
from replicas import data_hash
from slicing import places
from tiny_trainer import Trainer

import lockstep
from lockstep import receipts

WORLD = 2


class Served:
    """Two ranks in place, a receiver that signs and writes a log, and a trainer."""

    def __init__(self, cluster, ranks: Ranks) -> None:
        directory = cluster.directory
        self.ranks, self.cluster, self.log = ranks, cluster, f"file://{directory}/log"
        (directory / "log").mkdir()
        self.private, self.keys = key_pair(directory, "ours")
        self.agent, socket = cluster.agent(), directory / "engine.sock"
        options = {"archive": self.log, "archive_key": self.private, "archive_keep_bytes": 1 << 30}
        self.receiver = cluster.receiver(self.agent, engine_load="in-place", engine_socket=socket, **options)
        self.trainer = Trainer("llama", directory / "checkpoints", self.agent.socket, MODEL, num_attention_heads=8)
        self.checkpoints = {}
        jobs = [
            Job("default", rank, WORLD, place, self.trainer.config, socket, MODEL)
            for rank, place in enumerate(places(WORLD))
        ]
        self.publish()
        ranks.call(build, jobs, self.checkpoints[1])
        ranks.call(attach)
        self.expect_newest()

    def publish(self) -> None:
        if self.checkpoints:
            self.trainer.step()
        version = len(self.checkpoints) + 1
        self.checkpoints[version] = self.trainer.publish(version)

    def expect_newest(self) -> None:
        version = max(self.checkpoints)
        assert self.ranks.call(differences, version, self.checkpoints[version]) == [[]] * WORLD
        wait_until(lambda: self.control.receipts(version=version), "it has a receipt")

    @property
    def control(self) -> lockstep.control.Receiver:
        return lockstep.control.Receiver(self.receiver.address)


@pytest.fixture
def served(cluster):
    with Ranks(WORLD) as ranks:
        served = Served(cluster, ranks)
        yield served
        served.trainer.close()


def test_a_sample_is_joined_to_the_bytes_that_computed_it(served, tmp_path):
    samples = []
    for _ in range(4):
        began = time.time()
        samples.append((max(served.checkpoints), began, time.time()))
        before = time.time()
        served.publish()
        served.expect_newest()
        with pytest.raises(lockstep.NotFoundError, match="no engine served one version"):
            receipts.of_sample(served.control, before, time.time())
    digests = set()
    for version, began, ended in samples:
        receipt = receipts.of_sample(served.control, began, ended, keys=served.keys)
        assert (receipt.version, receipt.engine, receipt.model) == (version, "default", MODEL)
        assert receipt.run == served.trainer.exporter.run and len(receipt.plan_digest) == 32
        digests.add((receipt.manifest_digest, receipt.plan_digest))
        out = tmp_path / str(version)
        fetch = [LOCKSTEPCTL, "log", "fetch", served.log, MODEL, "--version", str(version), "--out", out]
        wait_until(lambda: subprocess.run(fetch, capture_output=True).returncode == 0, "the log has it")
        assert json.loads((out / "lockstep.json").read_text())["manifest_digest"] == receipt.manifest_digest
        assert data_hash(out / "model.safetensors") == data_hash(served.checkpoints[version] / "model.safetensors")
    assert len(digests) == len(samples) and len({plan for _, plan in digests}) == 1


def test_intervals_of_an_engine_never_overlap_and_end_where_it_stops(served):
    for _ in range(5):
        served.publish()
        served.expect_newest()
    served.ranks.call(fall_asleep)
    wait_until(lambda: served.control.receipts()[-1].ended, "it serves nothing")
    asleep = time.time()
    served.ranks.call(wake)
    served.expect_newest()
    wait_until(lambda: not served.control.receipts()[-1].ended, "it serves again")
    found = served.control.receipts()
    for before, after in zip(found, found[1:]):
        assert before.ended and before.from_unix_ns <= before.to_unix_ns <= after.from_unix_ns
    assert found[-1].from_unix_ns > asleep * 1e9
    assert [one.version for one in found][-2:] == [6, 6]


def test_receipts_outlive_their_receiver_and_nobody_vouches_for_the_time_in_between(served):
    served.publish()
    served.expect_newest()
    before = served.control.receipts()
    served.receiver.kill()
    ended = time.time()
    served.receiver.start()
    served.expect_newest()
    wait_until(lambda: not served.control.receipts()[-1].ended, "it is served again")
    after = served.control.receipts(keys=served.keys)
    assert [one.version for one in after] == [*(one.version for one in before), 2]
    assert after[-2].ended and after[-2].to_unix_ns <= ended * 1e9 <= after[-1].from_unix_ns


def test_a_receipt_of_another_key_or_of_other_words_is_refused(served, tmp_path):
    _, others = key_pair(tmp_path, "others")
    with pytest.raises(lockstep.PermissionDeniedError, match="signed by no key that is trusted"):
        served.control.receipts(keys=others)
    printed = served.receiver.ctl("--json", "receipt").stdout
    kept = tmp_path / "receipts.json"

    def check(text: str) -> subprocess.CompletedProcess:
        kept.write_text(text)
        command = [LOCKSTEPCTL, "receipt", "--file", kept, "--keys", served.keys]
        return subprocess.run(command, capture_output=True, text=True)

    assert check(printed).returncode == 0
    changed = json.loads(printed)
    digest = changed[0]["says"]["manifest_digest"]
    other = digest[2:] + digest[:2]
    changed[0]["says"]["manifest_digest"] = other
    assert "is not what was signed" in check(json.dumps(changed)).stderr
    changed[0]["receipt"] = changed[0]["receipt"].replace(digest, other)
    assert "signed by no key" in check(json.dumps(changed)).stderr
    changed[0]["signatures"] = []
    assert "is not signed" in check(json.dumps(changed)).stderr
    for wrong in ("", "{}", "[1]", '[{"receipt": 1}]', '[{"receipt": "abc"}]', '[{"receipt": "ff"}]'):
        assert check(wrong).returncode == 65
