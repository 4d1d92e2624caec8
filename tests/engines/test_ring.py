"""A trainer and an engine on its host, two processes, and nothing between them but a ring of buckets."""

import pytest
import ring_ranks
import torch
from hf_models import tiny_config
from ranks import Ranks

import lockstep

BUCKET = 8 << 10  # an embedding of 16,000 bytes takes several


@pytest.fixture
def ring(tmp_path):
    return tmp_path / "ring.sock"


@pytest.fixture
def ranks():
    """Three processes: a trainer, an engine, and one that takes either's place."""
    with Ranks(3) as ranks:
        yield ranks


TRAINER, ENGINE, ANOTHER = [0], [1], [2]


@pytest.fixture
def start(ranks, cluster, tmp_path, ring):
    """A function that starts a trainer of `family` and an engine, and returns the trainer's pid."""
    agent = cluster.agent()

    def start(family="llama", bucket_bytes=BUCKET, into=ring_ranks.DeadlyInto, trainer=TRAINER):
        directory = tmp_path / f"trainer{trainer[0]}"
        arguments = family, directory, agent.socket, ring, bucket_bytes
        (process,) = ranks.call(ring_ranks.train, *arguments, only=trainer)
        if into is not None:
            ranks.call(ring_ranks.engine, tiny_config(family), ring, into, only=ENGINE)
        return process

    return start


def transfer(ranks, version, trainer=TRAINER, engine=ENGINE):
    """Sends and takes a version; the checkpoint that it must equal."""
    ranks.start(ring_ranks.take, only=engine)
    (checkpoint,) = ranks.call(ring_ranks.send, version, only=trainer)
    assert ranks.answers(engine) == [(version, None)]
    return checkpoint


def check_module(ranks, checkpoint, tmp_path, engine=ENGINE):
    (saved,) = ranks.call(ring_ranks.saved, tmp_path / f"engine-{checkpoint.name}", only=engine)
    assert ring_ranks.difference(saved, checkpoint) is None


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("bucket_bytes", [BUCKET, 64 << 20])
def test_each_version_is_bit_for_bit_what_transformers_saves_of_the_float32_masters(
    ranks, start, tmp_path, family, bucket_bytes
):
    start(family, bucket_bytes)
    for version in range(1, 6):
        check_module(ranks, transfer(ranks, version), tmp_path)


def test_a_loader_gets_every_tensor_once_and_whole_though_buckets_are_smaller(ranks, start, ring):
    start(into=None)
    ranks.call(ring_ranks.loading_engine, ring, only=ENGINE)
    for version in (1, 2):
        checkpoint = transfer(ranks, version)
        (tensors,) = ranks.call(ring_ranks.loaded, only=ENGINE)
        assert ring_ranks.difference(tensors, checkpoint) is None


def test_a_trainer_killed_in_the_middle_leaves_a_mix_that_is_no_version_until_another_one_sends_a_whole(
    ranks, start, tmp_path
):
    trainer = start()
    transfer(ranks, 1)
    ranks.call(ring_ranks.arm, trainer, 5, only=ENGINE)
    ranks.start(ring_ranks.failing_take, only=ENGINE)
    ranks.start(ring_ranks.send, 2, only=TRAINER)
    ((kind, text, served, error),) = ranks.answers(ENGINE)
    assert (kind, served) == ("UnavailableError", None) and "the trainer on" in text
    assert error == f"version 2 broke off, the weights are a mix: {text}"
    start(trainer=ANOTHER, into=None)  # where the dead one left its socket
    check_module(ranks, transfer(ranks, 3, trainer=ANOTHER), tmp_path)


def test_an_engine_killed_in_the_middle_is_an_error_and_the_trainer_continues(ranks, start, ring, tmp_path):
    start()
    transfer(ranks, 1)
    ranks.call(ring_ranks.arm, 0, 5, only=ENGINE)
    ranks.start(ring_ranks.take, only=ENGINE)
    ((kind, text),) = ranks.call(ring_ranks.failing_send, 2, only=TRAINER)
    assert kind == "UnavailableError"
    assert text.startswith(f"version 2 was not sent: the reader on {ring}")
    ranks.call(ring_ranks.engine, tiny_config("llama"), ring, only=ANOTHER)
    check_module(ranks, transfer(ranks, 2, engine=ANOTHER), tmp_path, engine=ANOTHER)


def test_an_engine_that_fails_in_the_middle_reports_why_to_the_trainer_and_the_next_version_heals_it(
    ranks, start, tmp_path
):
    start(into=ring_ranks.FailingInto)
    ranks.start(ring_ranks.failing_take, only=ENGINE)
    ((kind, text),) = ranks.call(ring_ranks.failing_send, 1, only=TRAINER)
    assert kind == "AbortedError" and "the engine ran out of something" in text
    assert ranks.answers(ENGINE) == [
        (
            "ValueError",
            "the engine ran out of something",
            None,
            "version 1 broke off, the weights are a mix: the engine ran out of something",
        )
    ]
    check_module(ranks, transfer(ranks, 2), tmp_path)


def test_a_module_that_does_not_fit_is_refused_by_name_on_both_ends_and_keeps_its_weights(ranks, start, ring):
    start(into=None)
    ranks.call(ring_ranks.engine, tiny_config("llama", vocab_size=120), ring, only=ENGINE)
    before = ranks.call(_checksum, only=ENGINE)
    ranks.start(ring_ranks.failing_take, only=ENGINE)
    ((kind, text),) = ranks.call(ring_ranks.failing_send, 1, only=TRAINER)
    name = "model.embed_tokens.weight"
    reason = f'parameter "{name}" wants [120, 64] from [0, 0] on of tensor "{name}", which is [125, 64]'
    assert kind == "AbortedError" and text.endswith(f"failed: {reason}")
    assert ranks.answers(ENGINE) == [("BadDataError", reason, None, None)]
    assert ranks.call(_checksum, only=ENGINE) == before
    ranks.call(ring_ranks.engine, tiny_config("llama"), ring, only=ENGINE)
    transfer(ranks, 1)


def _checksum(rank):
    return [float(tensor.double().sum()) for tensor in rank.module.state_dict().values()]


def test_arguments_out_of_their_bounds_and_a_socket_that_is_taken_are_refused(cluster, ring, tmp_path):
    agent = cluster.agent()
    tensors = torch.nn.Linear(64, 64, bias=False).state_dict()
    with lockstep.Publisher.from_tensors(tensors, socket=agent.socket, model="actor") as exporter:
        for wrong, text in {"buckets": 0, "bucket_bytes": 100, "device": "cpu"}.items():
            with pytest.raises(lockstep.BadDataError, match=wrong):
                lockstep.BucketRing(exporter, socket=ring, **{wrong: text})
        with lockstep.BucketRing(exporter, socket=ring, timeout=0.2) as first:
            with pytest.raises(lockstep.StateError, match="no ring can be made at .*Address already in use"):
                lockstep.BucketRing(exporter, socket=ring)
            with pytest.raises(lockstep.BadDataError, match="version 0"):
                first.send(0)
            with pytest.raises(lockstep.UnavailableError, match="no reader connected to .* within 0.2 s"):
                first.send(1)
        with pytest.raises(lockstep.StateError, match="closed"):
            first.send(1)
        ring.write_text("another file")
        with pytest.raises(lockstep.StateError, match=f"no ring can be made at {ring}"):
            lockstep.BucketRing(exporter, socket=ring)
        assert ring.read_text() == "another file"
