"""Versions, runs, ranks and models: what trainers do, right and wrong, and what receivers get of it."""

import contextlib
import gc
import signal
from pathlib import Path

import numpy as np
import pytest
from harness import MODEL, wait_until
from rank_process import RankProcess, content
from replicas import ToyModel

import lockstep

SHAPES = {"a": [300, 700], "b": [200_000], "c": [], "d": [64, 64]}
HALVES = [["a", "c"], ["b", "d"]]


def all_content(seed: int, shapes=SHAPES):
    return {name: content(name, seed, shape) for name, shape in shapes.items()}


@pytest.fixture
def agent(cluster):
    return cluster.agent()


@pytest.fixture
def two_ranks(agent):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(RankProcess(agent.socket, MODEL, SHAPES, rank, 2, HALVES[rank])) for rank in (0, 1)]


def publish_by_all(ranks, version: int, seed: int) -> None:
    for rank, names in zip(ranks, HALVES):
        rank.write(version, names, seed)
    for rank in ranks:
        rank.send("commit")
    for rank in ranks:
        rank.answer()


def test_a_late_joiner_gets_a_full_copy_and_then_follows_with_deltas(cluster, agent):
    model = ToyModel()
    early = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        for version in (1, 2, 3):
            publisher.publish(version=version, tensors=model.step())
        early.wait_for(model.tensors)
        late = cluster.receiver(agent, start=False)
        late.start()
        late.wait_for(model.tensors)
        with late.recorded_syncs() as syncs:
            for version in (4, 5):
                model.reach(publisher, version, late, early)
    assert [sync["mode"] for sync in syncs] == ["delta", "delta"]


def test_a_receiver_several_versions_behind_catches_up_without_a_full_pull(cluster, agent):
    model = ToyModel()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
        receiver.stop()
        for version in (2, 3, 4):
            publisher.publish(version=version, tensors=model.step())
        receiver.start()
        receiver.wait_for(model.tensors)
    sync = receiver.model_status()
    assert sync["held"]["version"] == 4
    delta_bytes = sum(delta["payload_bytes"] for delta in agent.model_status()["deltas"])
    assert 0 < delta_bytes < model_bytes(model) / 2


def model_bytes(model: ToyModel) -> int:
    return sum(tensor.nbytes for tensor in model.tensors.values())


def test_several_models_share_an_agent_and_a_receiver_without_mixing(cluster, agent):
    actor, critic = ToyModel(seed=1), ToyModel(seed=2, blocks=5, tensors=3)
    receiver = cluster.receiver(agent, models=("actor", "critic"))
    only_critic = cluster.receiver(agent, models=("critic",))
    with agent.publisher(actor.tensors, "actor") as first, agent.publisher(critic.tensors, "critic") as second:
        for version in (1, 2, 3):
            first.publish(version=version, tensors=actor.step())
            second.publish(version=10 * version, tensors=critic.step())
            receiver.wait_for(actor.tensors, "actor")
            receiver.wait_for(critic.tensors, "critic")
            only_critic.wait_for(critic.tensors, "critic")
    assert not only_critic.published("actor").exists()
    assert receiver.model_status("critic")["held"]["version"] == 30


def test_two_ranks_write_halves_of_a_version_and_it_commits_when_both_have(cluster, agent, two_ranks):
    receiver = cluster.receiver(agent)
    for version in (1, 2, 3):
        publish_by_all(two_ranks, version, seed=version)
        receiver.wait_for(all_content(version))


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_a_rank_that_is_stopped_holds_the_others_up_until_their_timeout_and_nothing_that_is_served(cluster, agent, end):
    receiver = cluster.receiver(agent)
    with (
        RankProcess(agent.socket, MODEL, SHAPES, 0, 2, HALVES[0], call_timeout=5) as waiting,
        RankProcess(agent.socket, MODEL, SHAPES, 1, 2, HALVES[1]) as stopped,
    ):
        publish_by_all([waiting, stopped], 1, seed=1)
        waiting.write(2, HALVES[0], seed=2)
        waiting.call("commit")
        stopped.write(2, HALVES[1][:1], seed=2)
        stopped.process.send_signal(signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(lockstep.DeadlineError, match="did not answer in time"):
                waiting.call("begin", 3)
        receiver.wait_for(all_content(1))
        cluster.receiver(agent).wait_for(all_content(1))

        stopped.process.send_signal(end)
        if end == signal.SIGCONT:
            stopped.call("fill", HALVES[1][1], 2)
            stopped.call("commit")
            receiver.wait_for(all_content(2))
            publish_by_all([waiting, stopped], 3, seed=3)
        else:
            wait_until(lambda: agent.model_status()["versions_aborted"] == 1, "the version is aborted")
            with RankProcess(agent.socket, MODEL, SHAPES, 1, 2, HALVES[1], agent.model_status()["run"]) as replacement:
                publish_by_all([waiting, replacement], 3, seed=3)
        receiver.wait_for(all_content(3))


def test_a_rank_that_aborts_gives_the_version_up_for_all(agent, two_ranks):
    for rank, names in zip(two_ranks, HALVES):
        rank.write(1, names, seed=1)
    two_ranks[0].call("abort")
    with pytest.raises(lockstep.AbortedError, match="rank 0 aborted version 1"):
        two_ranks[1].call("commit")
    publish_by_all(two_ranks, 2, seed=2)
    agent.wait_for(2)


@pytest.mark.parametrize(
    "owns, problem",
    [
        (["b"], 'tensor "c": 16 of its 16 bytes are in no rank\'s share'),
        (["a", "b", "c"], 'tensor "a": ranks 0 and 1 both have some of its bytes'),
    ],
    ids=["no writer", "two writers"],
)
def test_a_tensor_without_exactly_one_writer_is_named_to_the_last_rank_which_may_open_again(agent, owns, problem):
    tensors = {name: np.ones(4, np.float32) for name in "abc"}
    with agent.publisher(tensors, rank=0, ranks=2, owns=["a"]) as first:
        with pytest.raises(lockstep.BadDataError, match=problem):
            agent.publisher(tensors, rank=1, ranks=2, owns=owns)
        with agent.publisher(tensors, rank=1, ranks=2, owns=["b", "c"]) as second:
            for publisher, names in ((first, "a"), (second, "bc")):
                publisher.publish(version=1, tensors={name: tensors[name] for name in names})
            assert second.committed_version == 1


def test_a_rank_writes_no_tensor_of_another_and_leaves_out_none_of_its_own(cluster, agent, two_ranks):
    for rank in two_ranks:
        rank.call("begin", 1)
    for call in (lambda: two_ranks[0].call("fill", "b", 1), lambda: two_ranks[0].call("done", ["b"])):
        with pytest.raises(
            lockstep.BadDataError, match='tensor "b" is not among those that this rank was opened to write'
        ):
            call()
    two_ranks[0].call("fill", "a", 1)
    with pytest.raises(
        lockstep.BadDataError, match='version 1 .*rank 0 never reported some of its bytes.*in tensor "c"'
    ):
        two_ranks[0].call("commit")
    with pytest.raises(lockstep.BadDataError, match="rank 0 never reported"):
        two_ranks[1].call("commit")
    publish_by_all(two_ranks, 2, seed=2)
    cluster.receiver(agent).wait_for(all_content(2))


def test_a_tensor_that_is_reported_twice_is_an_error_of_the_commit_and_the_next_version_works(agent, two_ranks):
    two_ranks[0].write(1, HALVES[0], seed=1)
    two_ranks[0].call("done", ["a"])
    with pytest.raises(lockstep.BadDataError, match="rank 0 reports bytes twice, those at 0, in tensor"):
        two_ranks[0].call("commit")
    publish_by_all(two_ranks, 2, seed=2)
    agent.wait_for(2)


def test_a_restarted_trainer_makes_a_new_run_that_receivers_take_in_full(cluster, agent):
    model = ToyModel()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        first_run = publisher.run
        model.reach(publisher, 7, receiver)
    with receiver.recorded_syncs() as syncs, agent.publisher(model.tensors) as publisher:
        assert publisher.run != first_run
        model.reach(publisher, 1, receiver)
        model.reach(publisher, 2, receiver)
    assert [sync["mode"] for sync in syncs] == ["full", "delta"]
    assert receiver.model_status()["held"]["run"] == publisher.run


def test_a_restarted_trainer_with_another_layout_is_followed(cluster, agent):
    old, new = ToyModel(), ToyModel(seed=5, blocks=9, tensors=7)
    receiver = cluster.receiver(agent)
    for model in (old, new):
        with agent.publisher(model.tensors) as publisher:
            model.reach(publisher, 1, receiver)


def test_a_trainer_that_proves_continuity_goes_on_in_its_run(cluster, agent):
    model = ToyModel()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        run = publisher.run
        model.reach(publisher, 1, receiver)
    with receiver.recorded_syncs() as syncs, agent.publisher(model.tensors, run=run) as publisher:
        assert publisher.run == run
        model.reach(publisher, 2, receiver)
    assert [sync["mode"] for sync in syncs] == ["delta"]


@pytest.mark.parametrize("version", [3, 5], ids=["lower", "equal"])
def test_a_version_that_does_not_increase_is_refused_and_nothing_held_is_lost(cluster, agent, version):
    model = ToyModel(blocks=2)
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 5, receiver)
        with pytest.raises(lockstep.StateError, match=str(version)):
            publisher.publish(version=version, tensors=model.tensors)
        receiver.wait_for(model.tensors)
        model.reach(publisher, 6, receiver)


def test_a_tensor_missing_at_commit_is_named_and_the_next_version_works(cluster, agent):
    model = ToyModel(blocks=4)
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        some = {name: tensor for name, tensor in model.tensors.items() if name != "layers.2.weight"}
        with pytest.raises(lockstep.BadDataError, match=r"layers\.2\.weight"):
            publisher.publish(version=2, tensors=some)
        model.reach(publisher, 3, receiver)


def test_a_tensor_given_twice_is_refused_and_the_next_version_works(agent):
    model = ToyModel(blocks=4)
    pairs = list(model.tensors.items())
    with agent.publisher(model.tensors) as publisher:
        with pytest.raises(lockstep.Error, match="reports bytes twice, those at 0, in tensor"):
            publisher.publish(version=1, tensors=pairs + pairs[:1])
        publisher.publish(version=2, tensors=model.tensors)


def test_wrong_shapes_dtypes_and_names_are_refused_before_anything_is_written(cluster, agent):
    tensors = {"a": np.zeros(8, np.float32), "b": np.ones((2, 3), np.int8)}
    receiver = cluster.receiver(agent)
    with agent.publisher(tensors) as publisher:
        publisher.publish(version=1, tensors=tensors)
        for wrong, complaint in [
            ({"a": np.zeros(9, np.float32)}, r'"a".*\[9\].*\[8\]'),
            ({"a": np.zeros(8, np.int32)}, '"a".*I32.*F32'),
            ({"x": np.zeros(8, np.float32)}, '"x"'),
            ({"a": np.zeros(16, np.float32)[::2]}, '"a".*contiguous'),
        ]:
            with pytest.raises(lockstep.BadDataError, match=complaint):
                publisher.publish(version=2, tensors=tensors | wrong)
        publisher.publish(version=2, tensors=tensors)
        receiver.wait_for(tensors)


def test_tensors_of_any_size_that_several_threads_copy_arrive(cluster, agent):
    randomness = np.random.default_rng(4)
    sizes = {"odd": 3, "large": 70 << 20, "none": 0, "small": 5, "batch": 32 << 20}
    tensors = {name: randomness.integers(0, 256, size, np.uint8) for name, size in sizes.items()}
    receiver = cluster.receiver(agent)
    with agent.publisher(tensors, threads=3) as publisher:
        for version in (1, 2, 3):
            tensors["large"][::997] += 1
            publisher.publish(version=version, tensors=tensors)
            receiver.wait_for(tensors)
    with lockstep.Publisher.from_stream(tensors, model=MODEL, socket=agent.socket, threads=2) as streamed:
        tensors["batch"][::997] += 1
        streamed.publish(version=1, tensors=iter(tensors.items()))
        receiver.wait_for(tensors)
    with pytest.raises(lockstep.BadDataError, match="threads is 257; it must be from 1 to 256"):
        agent.publisher(tensors, threads=257)


def test_a_wrong_size_given_to_the_library_itself_is_refused_by_name(agent):
    tensors = {"a": np.zeros(8, np.float32), "b": np.zeros(8, np.float32)}
    with agent.publisher(tensors) as publisher:
        publisher.begin(1)
        source = publisher._way._source("b", tensors["b"])
        with pytest.raises(lockstep.BadDataError, match="b"):
            publisher._way._write([source._replace(bytes=source.bytes._replace(nbytes=28))])
        with pytest.raises(lockstep.BadDataError, match='tensor "b" is not BF16'):
            publisher._way._write([source._replace(rounds=True)])
        publisher.abort()
        publisher.publish(version=2, tensors=tensors)


def test_tensors_filled_in_place_arrive(cluster, agent):
    tensors = {"a": np.arange(100_000, dtype=np.float32), "b": np.arange(7, dtype=np.int64)}
    receiver = cluster.receiver(agent)
    with agent.publisher(tensors) as publisher:
        data = publisher.begin(1)
        for meta, offset in publisher.layout:
            data[offset : offset + meta.nbytes] = tensors[meta.name].tobytes()
            publisher.tensors_done([meta.name])
        publisher.commit()
        receiver.wait_for(tensors)


def test_the_memory_of_a_version_raises_after_close(agent):
    with agent.publisher({"a": np.zeros(4)}) as publisher:
        views = []
        for version in range(1, 5):
            views.append(publisher.begin(version))
            publisher.abort()
        with publisher.begin(5):  # which releases it before
            pass
    for view in views:
        with pytest.raises(ValueError, match="released memoryview"):
            view[0]


@pytest.mark.parametrize("use", [lambda view: np.frombuffer(view, np.uint8), lambda view: view[8:16]])
def test_what_was_made_of_a_versions_memory_keeps_it_after_close_and_the_agent_is_left_at_once(agent, use):
    def mapped() -> bool:
        return str(agent.segment_dir) in Path("/proc/self/maps").read_text()

    publisher = agent.publisher({"a": np.zeros(4)})
    memory = use(publisher.begin(1))
    publisher.close()
    wait_until(lambda: agent.model_status()["ranks_connected"] == 0, "the rank has left")
    memory[3] = 7
    assert memory[3] == 7
    with pytest.raises(lockstep.StateError, match="is closed"):
        publisher.begin(2)
    publisher.close()
    with agent.publisher({"a": np.zeros(4)}) as another:
        another.publish(version=1, tensors={"a": np.ones(4)})
    assert mapped() and memory[3] == 7
    del memory, publisher
    assert not mapped()


def test_the_memory_of_a_version_keeps_a_publisher_without_another_reference(agent):
    data = np.frombuffer(agent.publisher({"a": np.zeros(4)}).begin(1), np.float64)
    gc.collect()
    data[:] = 1
    assert agent.model_status()["writing_version"] == 1


@pytest.mark.parametrize(
    "meta, complaint",
    [
        ([("a" * 1025, "F32", (1,))], "1024"),
        ([("a", "F32", (1 << 40, 1 << 40))], '"a"'),
        ([("a", "F32", (1 << 46,))], '"a"'),
        ([("a", "F32", (1,)), ("a", "F32", (1,))], '"a".*twice'),
        ([("a\n", "F32", (1,))], "control"),
        ([("a", "F32", (0,))], "no bytes"),
    ],
    ids=["long-name", "overflow", "too-large", "duplicate", "control-character", "no-bytes"],
)
def test_an_impossible_layout_is_refused_by_name_and_held_models_live_on(cluster, agent, meta, complaint):
    model = ToyModel(blocks=2)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)
        with pytest.raises(lockstep.BadDataError, match=complaint):
            agent.publisher([lockstep.TensorMeta(*fields) for fields in meta], "other")
        publisher.publish(version=2, tensors=model.step())
        cluster.receiver(agent).wait_for(model.tensors)
