"""Weights in GPU memory reach a receiver bit for bit, however they were computed, and checkpoints reach them."""

import threading

import pytest
import torch
from gpu_models import DTYPES, Weights, apply, busy, exporter, gpu_only, importer, stream_publisher, unlike
from replicas import read_file

VERSIONS = 6


@pytest.mark.parametrize("made_by", [exporter, stream_publisher])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_versions_arrive_as_the_trainer_has_them(cluster, dtype, made_by):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    weights, twin = Weights(dtype), Weights(dtype, "cpu")
    with made_by(agent.socket, weights) as trainer:
        for step in range(1, VERSIONS + 1):
            weights.step()
            trainer.publish(step, tensors=reversed(weights.tensors.items()) if made_by is stream_publisher else None)
            receiver.wait_for(twin.step().published())
            assert unlike(weights.published(), twin.published()) == []  # the GPU computed what the CPU did
    verified = receiver.ctl("verify")
    assert verified.returncode == 0, verified.stderr


def test_after_a_version_that_was_broken_off_the_next_one_is_whole(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    weights = Weights(torch.bfloat16)
    with exporter(agent.socket, weights) as trainer:
        trainer.publish(version=1)
        receiver.wait_for(weights.published())
        agent.kill()  # with all that it knew of what its slots hold
        weights.step(0.01)
        agent.start()
        trainer.publish(version=2)
        receiver.wait_for(weights.published())
        weights.step(0.01)
        trainer.publish(version=3)
        receiver.wait_for(weights.published())


@gpu_only
def test_what_another_stream_still_computes_is_waited_for_by_another_thread(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    weights, twin = Weights(torch.bfloat16), Weights(torch.bfloat16, "cpu")
    with exporter(agent.socket, weights) as trainer:
        for version in range(1, 4):
            changes = weights.next_step()
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                busy()
                apply(changes)
            thread = threading.Thread(target=trainer.publish, args=(version,))
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
            receiver.wait_for(twin.step().published())


def test_columns_and_rows_of_a_larger_tensor_are_published_where_they_lie(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    weights = Weights(torch.bfloat16)
    stacked = torch.zeros(700, 300, dtype=torch.bfloat16, device=weights.device)
    stacked.copy_(torch.randn(700, 300))
    weights.tensors = {"columns": stacked[:, 17:250], "rows": stacked[5:400], "turned": stacked.t()}
    with exporter(agent.socket, weights) as trainer:
        trainer.publish(version=1)
        receiver.wait_for(weights.published())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("side", [False, pytest.param(True, marks=gpu_only)], ids=["this-stream", "another-stream"])
def test_a_checkpoint_wins_over_kernels_that_were_queued_before(cluster, dtype, side):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    weights = Weights(dtype)
    wanted = weights.published()
    with exporter(agent.socket, weights) as trainer:
        trainer.publish(version=1)
    receiver.wait_for(wanted)
    assert read_file(receiver.file()).keys() == wanted.keys()
    stream = torch.cuda.Stream() if side else None
    with torch.cuda.stream(stream):  # None: the current one
        busy()
        for tensor in weights.tensors.values():
            tensor.fill_(7)
    importer(weights).load(receiver.published())
    copies = {
        name: tensor.clone() for name, tensor in weights.tensors.items()
    }  # what is queued next reads the checkpoint
    weights.tensors = copies
    assert unlike(weights.published(), wanted) == []
