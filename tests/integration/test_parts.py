"""A model in parts: an agent for each, and a receiver of the whole."""

import json
import random
import secrets
import shutil
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import wait_until
from replicas import ToyModel, data_hash, tensors_hash

import lockstep


class Parts:
    """A toy model, of which each of `count` agents has every count-th tensor."""

    def __init__(self, cluster, count: int, **options) -> None:
        self.model = ToyModel(blocks=24)
        self.agents = [cluster.agent(name=f"agent-{part}", **options) for part in range(count)]
        self.run = secrets.token_hex(16)
        self.publishers = [self.publisher(part) for part in range(count)]
        self.version = 0

    def tensors(self, part: int) -> dict:
        names = sorted(self.model.tensors)[part :: len(self.agents)]
        return {name: self.model.tensors[name] for name in names}

    def publisher(self, part: int, **options) -> lockstep.Publisher:
        number = {"lockstep_part.json": json.dumps({"part": part, "parts": len(self.agents)})}
        options = {"run": self.run, "attachments": number, **options}
        return self.agents[part].publisher(self.tensors(part), **options)

    def publish(self, version: "int | None" = None) -> None:
        self.version = version or self.version + 1
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.publish_part, range(len(self.agents))))

    def publish_part(self, part: int) -> None:
        self.publishers[part].publish(f"step {self.version}", tensors=self.tensors(part), version=self.version)


def modes_of(receiver) -> "list[str]":
    """How each version came that it made current."""
    events = [json.loads(line) for line in receiver.log().splitlines()]
    return [event["mode"] for event in events if event.get("event") == "version_committed"]


@pytest.fixture
def parts(cluster):
    return Parts(cluster, 3)


def test_a_receiver_follows_the_whole_by_full_pull_and_by_deltas(cluster, parts):
    receiver = cluster.receiver(parts.agents)
    parts.publish()
    receiver.wait_for(parts.model.tensors)
    with receiver.recorded_syncs() as syncs:
        for _ in range(4):
            parts.model.step()
            parts.publish()
            receiver.wait_for(parts.model.tensors)
    assert {sync["mode"] for sync in syncs if sync["verified"]} <= {"delta", "chain"}
    status = receiver.model_status()
    assert (status["held"]["version"], status["held_label"]) == (5, "step 5")
    assert receiver.ctl("verify").returncode == 0
    files = {path.name for path in receiver.published().iterdir()}
    assert files == {"model.safetensors", "lockstep.json"}


def test_a_receiver_of_some_parts_follows_these_without_the_others(cluster, parts):
    some = [parts.agents[2], parts.agents[0]]
    refused = cluster.receiver(some)
    receiver = cluster.receiver(some, some_parts=True)
    for _ in range(3):
        parts.model.step()
        parts.publish()
        receiver.wait_for({**parts.tensors(0), **parts.tensors(2)})
    status = receiver.model_status()
    assert (status["held"]["version"], status["share"]) == (3, "parts 0, 2 of 3")
    assert "(parts 0, 2 of 3)" in receiver.ctl("status").stdout
    assert receiver.ctl("verify").returncode == 0
    wait_until(lambda: "--some-parts" in refused.model_status()["last_error"], "without the option it is refused")


def test_a_receiver_that_starts_again_goes_on_by_deltas(cluster, parts):
    receiver = cluster.receiver(parts.agents)
    parts.publish()
    receiver.wait_for(parts.model.tensors)
    receiver.kill()
    for _ in range(3):
        parts.model.step()
        parts.publish()
    receiver.start()
    receiver.wait_for(parts.model.tensors)
    assert modes_of(receiver) == ["full", "chain"]


def test_a_version_that_one_agent_lacks_is_passed_over(cluster, parts):
    receiver = cluster.receiver(parts.agents)
    parts.publish()
    receiver.wait_for(parts.model.tensors)
    before = parts.model.copy()
    parts.model.step()
    parts.version = 2
    for part in (0, 2):
        parts.publish_part(part)
        parts.agents[part].wait_for(2)
    time.sleep(1)
    receiver.wait_for(before)
    parts.model.step()
    parts.publish(3)
    receiver.wait_for(parts.model.tensors)
    assert modes_of(receiver) == ["full", "chain"]  # over a step that leads to no version of the whole
    assert receiver.ctl("verify").returncode == 0


def test_agents_at_versions_that_others_lack_leave_the_receiver_up_to_date(cluster, parts):
    receiver = cluster.receiver(parts.agents)
    parts.publish()
    receiver.wait_for(parts.model.tensors)
    before = parts.model.copy()
    for version, part in ((2, 0), (3, 1), (2, 2)):
        parts.model.step()
        parts.version = version
        parts.publish_part(part)
        parts.agents[part].wait_for(version)
    time.sleep(1)
    receiver.wait_for(before)
    assert receiver.model_status()["last_error"] == "" and receiver.model_status()["failures"] == 0
    parts.publish(4)
    receiver.wait_for(parts.model.tensors)


def test_a_new_run_is_followed_once_all_agents_have_it(cluster, parts):
    receiver = cluster.receiver(parts.agents)
    parts.publish(7)
    receiver.wait_for(parts.model.tensors)
    parts.run, parts.version = secrets.token_hex(16), 1
    parts.model.step()
    for part in range(3):
        status = receiver.model_status()
        assert (status["held"]["version"], status["state"] == "negotiating") == (7, False)  # it does not ask in vain
        parts.publishers[part].close()
        parts.publishers[part] = parts.publisher(part)
        parts.publish_part(part)
        parts.agents[part].wait_for(1)
        time.sleep(0.3)
    receiver.wait_for(parts.model.tensors)
    assert receiver.model_status()["failures"] == 0


def test_parts_of_which_the_trainer_moves_on_during_a_full_pull_come_to_one_version(cluster):
    parts = Parts(cluster, 3, lane_rate_limit=1 << 20)
    parts.publish()
    receiver = cluster.receiver(parts.agents, streaming=False)
    for _ in range(6):
        time.sleep(0.3)
        parts.model.step()
        parts.publish()
    receiver.wait_for(parts.model.tensors)
    assert receiver.model_status()["held"]["version"] == 7


def test_an_agent_that_lost_its_part_gets_it_again_in_the_same_run(cluster, parts):
    receiver = cluster.receiver(parts.agents)
    parts.publish()
    receiver.wait_for(parts.model.tensors)
    parts.publishers[1].close()
    parts.agents[1].kill()
    shutil.rmtree(parts.agents[1].segment_dir)
    parts.agents[1].start()
    parts.publishers[1] = parts.publisher(1)
    parts.model.step()
    with receiver.recorded_syncs() as syncs:
        parts.publish()
        receiver.wait_for(parts.model.tensors)
    assert receiver.model_status()["held"] == {"run": parts.run, "version": 2}
    assert modes_of(receiver) == ["full", "full"]
    lost = sum(tensor.nbytes for tensor in parts.tensors(1).values())
    pulled = sum(int(sync["payload_bytes"]) for sync in syncs)
    assert lost <= pulled < 1.3 * lost  # the other parts came by deltas


def test_a_trainer_that_begins_a_new_run_on_some_hosts_is_followed_once_all_have_it(cluster, parts):
    receiver = cluster.receiver(parts.agents)
    parts.publish()
    before = parts.model.copy()
    receiver.wait_for(before)
    for publisher in parts.publishers:
        publisher.close()
    parts.run = secrets.token_hex(16)
    parts.model.step()
    for part in range(3):
        receiver.wait_for(before)
        parts.publishers[part] = parts.publisher(part)
        parts.publish_part(part)
        time.sleep(0.3)
    receiver.wait_for(parts.model.tensors)
    assert receiver.model_status()["held"] == {"run": parts.run, "version": 1}


def test_a_trainer_that_comes_back_with_other_tensors_is_followed(cluster, parts):
    receiver = cluster.receiver(parts.agents)
    parts.publish()
    receiver.wait_for(parts.model.tensors)
    for publisher in parts.publishers:
        publisher.close()
    parts.model, parts.run, parts.version = ToyModel(seed=1, blocks=31, tensors=7), secrets.token_hex(16), 0
    parts.publishers = [parts.publisher(part) for part in range(3)]
    for _ in range(2):
        parts.publish()
        receiver.wait_for(parts.model.tensors)
        parts.model.step()


def test_what_the_agents_lack_is_said_with_their_addresses(cluster, parts):
    parts.publish()
    alone = cluster.receiver(parts.agents[0], name="alone")
    few = cluster.receiver(parts.agents[:2], name="few")
    twice = cluster.receiver([*parts.agents[:2], parts.agents[1]], name="twice")
    whole = cluster.agent(name="whole")
    with whole.publisher(parts.model.tensors) as publisher:
        publisher.publish(tensors=parts.model.tensors)
        none = cluster.receiver([whole, parts.agents[0]], name="none")
        said = {
            alone: f"agent {parts.agents[0].address} has part 0 of 3 of the model; name the agents of all parts",
            few: "of 3, and --source names 2 agents; name those of all",
            twice: f"and {parts.agents[1].address} both have part 1 of 3",
            none: f"agent {whole.address} has all of the model, and not a part",
        }
        for receiver, sentence in said.items():
            wait_until(lambda: sentence in str(receiver.model_status()), sentence)
            assert not receiver.file().exists()


class Onlooker(threading.Thread):
    """Reads what is current, again and again. `wrong` has the versions whose bytes were not those that were published."""

    def __init__(self, receiver, published: "dict[int, str]") -> None:
        super().__init__(daemon=True)
        self._receiver, self._published = receiver, published
        self.seen: "set[int]" = set()
        self.wrong: "list[int]" = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.001):
            try:
                place = self._receiver.published().resolve(strict=True)
                version = json.loads((place / "lockstep.json").read_text())["version"]
                found = data_hash(place / "model.safetensors")
                if self._receiver.published().resolve(strict=True) != place or version not in self._published:
                    continue
            except (OSError, ValueError):  # it was replaced meanwhile
                continue
            self.seen.add(version)
            if found != self._published[version]:
                self.wrong.append(version)

    def end(self) -> None:
        self._ended.set()
        self.join()


@pytest.mark.parametrize("kills", [40, pytest.param(500, marks=pytest.mark.nightly)])
def test_whatever_is_killed_no_mixture_is_shown(cluster, kills):
    dice = random.Random(69)
    parts = Parts(cluster, 3)
    receiver = cluster.receiver(parts.agents)
    published = {}
    onlooker = Onlooker(receiver, published)
    onlooker.start()
    behind = []
    for _ in range(kills):
        parts.model.step()
        parts.version += 1
        published[parts.version] = tensors_hash(parts.model.tensors)
        victim = dice.choice([receiver, *parts.agents])
        leaves_out = dice.choice([None, None, 0, 1, 2])  # a host whose ranks fail before they give their part
        with ThreadPoolExecutor() as pool:
            shares = [pool.submit(parts.publish_part, part) for part in range(3) if part != leaves_out]
            time.sleep(dice.random() * 0.03)
            victim.kill()
            victim.start()
        for share in shares:
            if share.exception() is not None:
                assert isinstance(share.exception(), lockstep.Error)
        if dice.random() < 0.25:
            parts.model.step()
            began = time.monotonic()
            parts.version += 1
            published[parts.version] = tensors_hash(parts.model.tensors)
            with ThreadPoolExecutor() as pool:
                list(pool.map(parts.publish_part, range(3)))
            receiver.wait_for(parts.model.tensors)
            behind.append(time.monotonic() - began)
    onlooker.end()
    assert onlooker.wrong == []
    assert len(onlooker.seen) > kills / 10
    print(
        f"{kills} kills, {len(onlooker.seen)} versions seen, none mixed; the newest after {statistics.median(behind):.2f} s"
    )
