"""Publisher.from_stream: tensors from generators, one at a time, that come with collectives on every rank.

Ranks are threads of the test, and a barrier at every tensor stands for a collective: where one rank leaves its stream
the others cannot go on.
"""

import contextlib
import json
import os
import random
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from harness import MODEL, wait_until
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import lockstep


def tensors_of(seed: int) -> "dict[str, torch.Tensor]":
    torch.manual_seed(seed)
    return {
        "embed": torch.randn(300, 700).bfloat16(),
        "norm": torch.randn(700),
        "proj": torch.randn(64, 4, 8).bfloat16(),
        "scale": torch.tensor(seed),
        "nothing": torch.empty(0, 4),
        "fp8": torch.randn(32, 32).to(torch.float8_e4m3fn),
        "head": torch.randn(200, 300).bfloat16(),
    }


def shuffled(tensors):
    pairs = list(tensors.items())
    random.Random(7).shuffle(pairs)
    return pairs


class Stream:
    """A generator that knows how far it was taken."""

    def __init__(self, pairs, barrier=None) -> None:
        self.pairs, self.barrier, self.taken, self.ended = list(pairs), barrier, 0, False

    def __iter__(self):
        for name, tensor in self.pairs:
            if self.barrier:
                self.barrier.wait(30)
            self.taken += 1
            if isinstance(tensor, Exception):
                raise tensor
            yield name, tensor
        self.ended = True


def as_checkpoint(tmp_path, tensors):
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path


def as_sharded_checkpoint(tmp_path, tensors):
    files = {name: f"model-{position % 2}.safetensors" for position, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    save_file({"a copy": torch.zeros(3)}, tmp_path / "consolidated.safetensors")
    return str(tmp_path)


LAYOUTS = {
    "a checkpoint": as_checkpoint,
    "a checkpoint in several files": as_sharded_checkpoint,
    "a first pass": lambda _, tensors: iter(tensors.items()),
    "a mapping": lambda _, tensors: tensors,
    "descriptions": lambda _, tensors: lockstep.core.tensors.describe(tensors),
}


@pytest.fixture
def agent(cluster):
    return cluster.agent()


@pytest.fixture
def publisher(agent):
    with lockstep.Publisher.from_stream(tensors_of(0), model=MODEL, socket=agent.socket, call_timeout=30) as publisher:
        yield publisher


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_receiver_holds_what_a_generator_gives_in_any_order(cluster, agent, tmp_path, layout):
    receiver = cluster.receiver(agent)
    with lockstep.Publisher.from_stream(layout(tmp_path, tensors_of(0)), model=MODEL, socket=agent.socket) as publisher:
        for version in (1, 2):
            tensors = tensors_of(version)
            publisher.publish(version=version, tensors=iter(shuffled(tensors)))
            receiver.wait_for(tensors)
        assert publisher.committed_version == 2 and publisher.run == agent.model_status()["run"]


def test_a_stream_may_hold_more_than_the_checkpoint_and_the_checkpoint_more_than_the_stream(cluster, agent, tmp_path):
    """As of a multi-token-prediction head that one of them has."""
    in_file = {**tensors_of(0), "mtp.0.proj": torch.randn(40, 50), "mtp.1.proj": torch.randn(3), "old": torch.zeros(2)}
    as_sharded_checkpoint(tmp_path, in_file)
    receiver = cluster.receiver(agent)
    kept = {name: tensor for name, tensor in in_file.items() if name.startswith("mtp.")}
    options = {"ignore": ["old", "extra.*"], "keep": "mtp.*"}
    with lockstep.Publisher.from_stream(tmp_path, model=MODEL, socket=agent.socket, **options) as publisher:
        publisher.publish(
            version=1, tensors=[*shuffled(tensors_of(1)), ("extra.0", torch.zeros(5)), ("old", torch.ones(2))]
        )
        receiver.wait_for({**tensors_of(1), **kept})
        given = {"mtp.0.proj": torch.randn(40, 50)}
        publisher.publish(version=2, tensors={**tensors_of(2), **given})
        receiver.wait_for({**tensors_of(2), **kept, **given})
        with pytest.raises(lockstep.BadDataError, match='"norm": the stream ended without it; ignore= publishes'):
            publisher.publish(
                version=3, tensors={name: tensor for name, tensor in tensors_of(3).items() if name != "norm"}
            )
        for file in tmp_path.glob("model-*.safetensors"):
            whole = file.read_bytes()
            file.write_bytes(whole[: 8 + int.from_bytes(whole[:8], "little")])  # the header alone
        with pytest.raises(lockstep.BadDataError, match='tensor "mtp.*proj": .*model-.* ends before it does'):
            publisher.publish(version=4, tensors=tensors_of(4))
        publisher.publish(version=5, tensors={**tensors_of(5), **kept})
        receiver.wait_for({**tensors_of(5), **kept})
    with pytest.raises(lockstep.BadDataError, match='tensor "norm": keep= is for a layout that is a checkpoint'):
        lockstep.Publisher.from_stream(tensors_of(0), model=MODEL, socket=agent.socket, keep="n*")


def with_one(name, change):
    return lambda pairs: [(own, change(tensor) if own == name else tensor) for own, tensor in pairs]


WRONG = {
    "missing": (lambda pairs: [p for p in pairs if p[0] not in ("norm", "head")], '"norm": the stream ended .* nor 1'),
    "twice": (lambda pairs: pairs[:3] + pairs[:1] + pairs[3:], 'tensor "{first}": the stream gave it before'),
    "unknown": (lambda pairs: [("lm_head", torch.zeros(3)), *pairs], 'tensor "lm_head": .* opened without it'),
    "shape": (with_one("norm", lambda tensor: tensor[1:]), r'"norm": it is F32 \[699\], .* opened with F32 \[700\]'),
    "dtype": (with_one("norm", torch.Tensor.bfloat16), r'"norm": it is BF16 \[700\], .* opened with F32 \[700\]'),
    "rounded unasked": (with_one("proj", torch.Tensor.float), '"proj": it is F32 .* opened with BF16'),
    "a tied head that differs": (
        lambda pairs: [*pairs, ("lm_head.weight", tensors_of(3)["embed"])],
        'tensor "lm_head.weight": .* as one that ties it to "embed", but the two came apart',
    ),
    "a tied head before the embedding": (
        lambda pairs: [("lm_head.weight", tensors_of(2)["embed"]), *pairs],
        'tensor "lm_head.weight": it came before "embed"',
    ),
    "a head of a shape of its own": (
        lambda pairs: [*pairs, ("lm_head.weight", torch.zeros(5, 5))],
        'tensor "lm_head.weight": the model was opened without it; open it',
    ),
    "without values": (with_one("norm", lambda tensor: tensor.to("meta")), 'tensor "norm": it is on the device "meta"'),
    "sparse": (with_one("norm", torch.Tensor.to_sparse), 'tensor "norm": it is stored as torch.sparse_coo'),
    "no tensor": (with_one("norm", torch.Tensor.tolist), 'tensor "norm": a list has neither data_ptr'),
    "no name": (lambda pairs: [*pairs[:2], pairs[2][1], *pairs[3:]], "entry 2 of the model's tensors .* has no name"),
}


class Unnamed(Stream):
    """Gives what is in the list, pairs or not."""

    def __iter__(self):
        yield from self.pairs
        self.ended = True


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_stream_is_refused_by_name_and_taken_to_its_end_and_the_version_before_stays(
    cluster, agent, publisher, wrong
):
    change, text = wrong
    receiver, before = cluster.receiver(agent), tensors_of(1)
    publisher.publish(version=1, tensors=before)
    receiver.wait_for(before)
    pairs = shuffled(tensors_of(2))
    stream = Unnamed(change(pairs))
    with pytest.raises(lockstep.BadDataError, match=text.replace("{first}", pairs[0][0])):
        publisher.publish(version=2, tensors=stream)
    assert stream.ended
    status = agent.model_status()
    assert (status["newest_version"], status["writing_version"], status["versions_aborted"]) == (1, 0, 1)
    receiver.wait_for(before)
    publisher.publish(version=3, tensors=tensors_of(3))
    receiver.wait_for(tensors_of(3))


def test_what_the_generator_raises_aborts_the_version(agent, publisher):
    publisher.publish(version=1, tensors=tensors_of(1))
    with pytest.raises(OSError, match="a link is down"):
        publisher.publish(
            version=2, tensors=Stream([*list(tensors_of(2).items())[:3], ("x", OSError("a link is down"))])
        )
    assert agent.model_status()["writing_version"] == 0
    publisher.publish(version=3, tensors=tensors_of(3))


def test_what_went_wrong_first_is_raised_where_the_generator_fails_later(publisher):
    pairs = [("other", torch.zeros(3)), ("x", OSError("a link is down"))]
    with pytest.raises(lockstep.BadDataError, match='"other"'):
        publisher.publish(version=1, tensors=Stream(pairs))


def test_a_publish_inside_a_publish_is_refused_and_harms_nothing(cluster, agent, publisher):
    receiver = cluster.receiver(agent)
    refused = []

    def in_the_middle():
        for position, pair in enumerate(tensors_of(1).items()):
            if position == 2:  # in the generator, and by another thread
                with pytest.raises(lockstep.StateError):
                    publisher.publish(version=2, tensors=tensors_of(2))
                with ThreadPoolExecutor(1) as other:
                    refused.append(other.submit(publisher.publish, version=3, tensors=tensors_of(3)).exception())
            yield pair

    publisher.publish(version=1, tensors=in_the_middle())
    assert isinstance(refused[0], lockstep.StateError)
    receiver.wait_for(tensors_of(1))
    assert publisher.stats["lockstep/version"] == 1
    assert agent.model_status()["versions_aborted"] == 0
    publisher.publish(version=4, tensors=tensors_of(4))
    receiver.wait_for(tensors_of(4))


def test_a_stream_that_has_ended_is_not_asked_again(publisher):
    class Once:
        ends = 0

        def __init__(self, pairs):
            self.pairs = iter(pairs)

        def __iter__(self):
            return self

        def __next__(self):
            try:
                return next(self.pairs)
            except StopIteration:
                self.ends += 1
                raise

    for version, tensors in enumerate((tensors_of(1), {"norm": torch.zeros(700)}), start=1):
        stream = Once(tensors.items())
        with contextlib.suppress(lockstep.BadDataError):
            publisher.publish(version=version, tensors=stream)
        assert stream.ends == 1


def test_a_shard_is_refused_by_name(publisher):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        shard = distribute_tensor(tensors_of(1)["norm"], init_device_mesh("cpu", (2,)), [Shard(0)])
        with pytest.raises(lockstep.BadDataError, match=r'tensor "norm": it is a DTensor; give tensor.full_tensor\(\)'):
            publisher.publish(version=1, tensors={**tensors_of(1), "norm": shard})
    finally:
        dist.destroy_process_group()


def test_a_rank_that_writes_nothing_needs_neither_agent_nor_checkpoint():
    publisher = lockstep.Publisher.from_stream("/no/checkpoint", model=MODEL, socket="/nowhere.sock", rank=1)
    stream = Stream([("any", None)])
    publisher.publish(version=1, tensors=stream)
    assert stream.ended and (publisher.writes, publisher.run, publisher.committed_version) == (False, "", 0)


def test_a_version_that_does_not_increase_is_refused_and_its_stream_taken_to_the_end(publisher):
    publisher.publish(version=2, tensors=tensors_of(2))
    for version in (0, 2):
        stream = Stream(tensors_of(2).items())
        with pytest.raises(lockstep.Error, match="version"):
            publisher.publish(version=version, tensors=stream)
        assert stream.ended
    publisher.publish(version=3, tensors=tensors_of(3))


def test_versions_are_skipped_while_the_agent_is_away_and_their_streams_taken_to_the_end(cluster, agent):
    options = {"skip_while_away": True, "reconnect_timeout": 0.2}
    with lockstep.Publisher.from_stream(tensors_of(0), model=MODEL, socket=agent.socket, **options) as publisher:
        assert publisher.publish(version=1, tensors=tensors_of(1))
        agent.stop()
        with pytest.warns(RuntimeWarning, match="versions are skipped"):
            for version in (2, 3):
                stream = Stream(tensors_of(version).items())
                assert not publisher.publish(version=version, tensors=stream) and stream.ended
        agent.start()
        assert publisher.publish(version=4, tensors=tensors_of(4))
        cluster.receiver(agent).wait_for(tensors_of(4))


def test_ctrl_c_is_handled_when_the_stream_has_ended(agent, publisher):
    stream = Stream(tensors_of(1).items())

    def interrupted():
        for position, entry in enumerate(stream):
            if position == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield entry

    with pytest.raises(KeyboardInterrupt):
        publisher.publish(version=1, tensors=interrupted())
    assert stream.ended
    wait_until(lambda: agent.model_status()["writing_version"] == 0, "the version is aborted")
    publisher.publish(version=2, tensors=tensors_of(2))


@pytest.mark.parametrize("writers", (1, 2))
def test_ranks_share_the_writing_and_the_others_only_take_their_streams(cluster, agent, writers):
    receiver, barrier = cluster.receiver(agent), threading.Barrier(3)
    with Ranks(agent, 3, writers) as ranks:
        assert [publisher.writes for publisher in ranks.publishers] == [rank < writers for rank in range(3)]
        for version in (1, 2):
            tensors = tensors_of(version)
            streams = [Stream(shuffled(tensors), barrier) for _ in range(3)]
            assert ranks.publish(version, streams) == [None, None, None]
            receiver.wait_for(tensors)
            assert all(stream.ended for stream in streams)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
@pytest.mark.parametrize("writers", (1, 2))
def test_a_head_that_a_checkpoint_ties_to_its_embedding_is_left_out_where_it_equals_it(cluster, agent, writers, dtype):
    receiver = cluster.receiver(agent)
    with Ranks(agent, 2, writers, dtype=torch.bfloat16) as ranks:
        tensors = {name: t.bfloat16() if t.dtype == torch.float32 else t for name, t in tensors_of(1).items()}
        head = tensors["embed"].to(dtype, copy=True)
        assert ranks.publish(1, [Stream([*tensors.items(), ("lm_head.weight", head)]) for _ in range(2)]) == [None] * 2
        receiver.wait_for(tensors)
        head[299, 699] += 1
        outcomes = ranks.publish(2, [Stream([*tensors.items(), ("lm_head.weight", head)]) for _ in range(2)])
        refused = [outcome for outcome in outcomes if isinstance(outcome, lockstep.BadDataError)]
        assert len(refused) == 1 and '"lm_head.weight"' in str(refused[0])
        assert agent.model_status()["newest_version"] == 1


@pytest.mark.parametrize("rank", (0, 1))
def test_a_wrong_tensor_on_one_rank_leaves_no_rank_waiting_and_the_next_version_works(cluster, agent, rank):
    receiver, barrier = cluster.receiver(agent), threading.Barrier(3)
    with Ranks(agent, 3, 2) as ranks:
        pairs = shuffled(tensors_of(1))
        streams = [Stream(pairs, barrier) for _ in range(3)]
        streams[rank].pairs = [("other", torch.zeros(3)), *pairs[1:]]
        outcomes = ranks.publish(1, streams)
        assert all(stream.ended for stream in streams)
        assert isinstance(outcomes[rank], lockstep.BadDataError) and '"other"' in str(outcomes[rank])
        assert isinstance(outcomes[1 - rank], lockstep.AbortedError) and outcomes[2] is None
        assert ranks.publish(2, [Stream(tensors_of(2).items(), barrier) for _ in range(3)]) == [None, None, None]
        receiver.wait_for(tensors_of(2))


class Ranks:
    """Publishers of one model, each published by a thread of its own."""

    def __init__(self, agent, count: int, writers: int, **options) -> None:
        self._pool = ThreadPoolExecutor(count)
        options |= {"writers": writers, "call_timeout": 30}

        def opened(rank):
            pairs = iter(tensors_of(0).items())
            return lockstep.Publisher.from_stream(pairs, model=MODEL, socket=agent.socket, rank=rank, **options)

        self.publishers = list(self._pool.map(opened, range(count)))

    def publish(self, version: int, streams) -> "list[Exception | None]":
        futures = [
            self._pool.submit(p.publish, version=version, tensors=stream) for p, stream in zip(self.publishers, streams)
        ]
        return [future.exception(60) for future in futures]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for publisher in self.publishers:
            publisher.close()
        self._pool.shutdown()


def test_strides_and_rounding_are_those_of_named_tensors(cluster, agent):
    torch.manual_seed(1)
    bits = torch.randint(-(1 << 31), 1 << 31, (500, 1000), dtype=torch.int64).int()  # infinities and subnormals too
    floats = torch.nan_to_num(bits.view(torch.float32), nan=1.0, posinf=torch.inf, neginf=-torch.inf)
    wide = torch.randn(1 << 11, 1 << 12)
    tensors = {"floats": floats, "turned": wide.t(), "strided": wide[::2, 5:], "half": wide.half(), "one": wide[3, 7]}
    tensors |= {"numpy": wide[:3].numpy(), "nothing": wide[:0].t(), "experts": wide.view(4, 512, 4096).transpose(0, 2)}
    receiver = cluster.receiver(agent, models=("streamed", "named"))
    options = {"dtype": torch.bfloat16, "socket": agent.socket}
    with lockstep.Publisher.from_stream(iter(tensors.items()), model="streamed", **options) as streamed:
        streamed.publish(version=1, tensors=tensors)
    with lockstep.Publisher.from_tensors(tensors, model="named", **options) as named:
        named.publish(version=1)
    wanted = {
        name: tensor if tensor.dtype == torch.half else tensor.bfloat16().contiguous()
        for name, tensor in ((name, torch.as_tensor(tensor)) for name, tensor in tensors.items())
    }
    receiver.wait_for(wanted, "named")
    receiver.wait_for(wanted, "streamed")


@pytest.mark.parametrize("fails", (False, True), ids=("well", "with an error"))
def test_no_tensor_is_held_when_the_next_one_is_asked_for(publisher, agent, fails):
    alive = []

    def gathered():
        for name in tensors_of(0):
            assert not any(tensor() is not None for tensor in alive), f"an earlier tensor lives at {name}"
            one = tensors_of(1).pop(name)
            alive.append(weakref.ref(one))
            yield ("other" if fails and name == "norm" else name), one
            del one

    lockstep.Publisher.from_stream(gathered(), model="described", socket=agent.socket).close()
    if fails:
        with pytest.raises(lockstep.BadDataError, match='"other"'):
            publisher.publish(version=1, tensors=gathered())
    else:
        publisher.publish(version=1, tensors=gathered())
    assert len(alive) == 2 * len(tensors_of(0))
