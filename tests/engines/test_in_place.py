"""Engines follow a training in place: their ranks' buffers equal what PyTorch makes of the trainer's tensors."""

import json
import secrets
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from engine_ranks import Job, attach, build, differences, leave, parameters_of
from harness import MODEL
from ranks import Ranks
from slicing import places
from tiny_trainer import Trainer, checkpoint_tensors

import lockstep
from lockstep.core.peer import LINE
from lockstep.engine._connection import Connection, Message, MessageType, ask_layout

# So that eight ranks divide everything; two key/value heads are shared by four and eight ranks.
WIDE = {"num_attention_heads": 8, "num_hidden_layers": 2}
STEPS = 30

# What differs in a model's configuration: biases; experts, and a router that is kept in float32.
CASES = {
    "llama": {**WIDE, "attention_bias": True, "mlp_bias": True},
    "glm4_moe": {**WIDE, "n_routed_experts": 8},
}


def jobs_of(config, socket) -> "list[Job]":
    """Engines of one receiver: TP 1, 2, 4 and 8, and experts spread over two ranks."""
    layouts = {"tp1": places(1), "tp2": places(2), "tp4": places(4), "tp8": places(8)}
    if getattr(config, "num_experts_per_tok", None):
        layouts["ep2"] = places(2, expert_parallel=2)
        layouts["tp4-ep2"] = places(4, expert_parallel=2)
    return [
        Job(name, rank, len(group), place, config, socket, MODEL)
        for name, group in layouts.items()
        for rank, place in enumerate(group)
    ]


@pytest.mark.parametrize("model", CASES)
def test_every_version_of_a_training_is_in_every_ranks_buffers(cluster, model):
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    trainer = Trainer(model, cluster.directory / "checkpoints", agent.socket, MODEL, **CASES[model])
    jobs = jobs_of(trainer.config, socket)
    with Ranks(len(jobs)) as ranks:
        checkpoint = trainer.publish(1)
        ranks.call(build, jobs, checkpoint)
        ranks.call(attach)
        assert ranks.call(differences, 1, checkpoint) == [[]] * len(jobs)
        for version in range(2, STEPS + 2):
            trainer.step()
            checkpoint = trainer.publish(version)
            wrong = ranks.call(differences, version, checkpoint)
            assert wrong == [[]] * len(jobs), f"version {version}"
        status = receiver.model_status()
        assert {engine["name"]: engine["commits"] for engine in status["rank_groups"]} == {
            job.name: STEPS + 1 for job in jobs
        }
        ranks.call(leave)
    trainer.close()


def test_a_rank_that_asks_before_the_first_version_gets_the_layout_of_the_checkpoint(cluster):
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    with Connection(str(socket)) as connection, ThreadPoolExecutor(1) as executor:
        connection.connect()
        answer = executor.submit(ask_layout, connection, MODEL)
        assert not wait([answer], timeout=1).done
        trainer = Trainer("llama", cluster.directory / "checkpoints", agent.socket, MODEL)
        checkpoint = trainer.publish(1)
        digest, tensors = answer.result(timeout=60)
    published = checkpoint_tensors(checkpoint)
    assert {name: (dtype, shape) for name, dtype, shape in tensors} == {
        name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in published.items()
    }
    description = lockstep.describe(parameters_of(published))
    other = introduce(socket, {**description, "layout": "0123456789abcdef" * 2})
    assert other.type == MessageType.REFUSED
    assert b"rank 0 (process " in other.body and b"was recorded for another layout of the model" in other.body
    assert introduce(socket, {**description, "layout": digest}).type == MessageType.ATTACHED
    with receiver.file().open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert [form.name for form in tensors] == [name for name in header if name != "__metadata__"]
    trainer.close()


def introduce(socket, description: dict) -> Message:
    """What the receiver answers a rank of this description."""
    said = {
        "peer": LINE,
        "model": MODEL,
        "engine": "default",
        "group": 0,
        "incarnation": "one",
        "gated": True,
        "state": "waiting",
    }
    with Connection(str(socket)) as connection:
        connection.connect()
        connection.send(Message(MessageType.ATTACH, body=json.dumps({**said, "description": description}).encode()))
        return connection.receive()


def test_a_model_in_parts_is_written_as_one(cluster):
    agents = [cluster.agent(name=f"agent-{part}") for part in range(2)]
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agents, engine_load="in-place", engine_socket=socket)
    trainer = Trainer("llama", cluster.directory / "checkpoints", cluster.agent().socket, MODEL, **CASES["llama"])
    jobs = [Job("tp4", rank, 4, place, trainer.config, socket, MODEL) for rank, place in enumerate(places(4))]
    run = secrets.token_hex(16)
    publishers: "list[lockstep.Publisher]" = []
    with Ranks(len(jobs)) as ranks:
        for version in range(1, 7):
            checkpoint = trainer.publish(version)
            tensors = checkpoint_tensors(checkpoint)
            shares = [{name: tensors[name] for name in sorted(tensors)[part::2]} for part in range(2)]
            for part in range(len(publishers), 2):
                number = {"lockstep_part.json": json.dumps({"part": part, "parts": 2})}
                publishers.append(agents[part].publisher(shares[part], run=run, attachments=number))
            for share, publisher in zip(shares, publishers):
                publisher.publish(version=version, tensors=share)
            if version == 1:
                ranks.call(build, jobs, checkpoint)
                ranks.call(attach)
            assert ranks.call(differences, version, checkpoint) == [[]] * len(jobs), f"version {version}"
            trainer.step()
        assert receiver.ctl("verify", "--engines").returncode == 0
        ranks.call(leave)
    trainer.close()
