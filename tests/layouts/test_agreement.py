"""Ranks that do not agree, or of which one fails: all get the reason, none waits, and no bytes are guessed."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from harness import Cluster, wait_until
from ranks import Ranks
from test_forks import in_child
from topologies import Topology
from trainer import refusal

import lockstep

TWO = Topology(dp=2)


def value(version: int) -> torch.Tensor:
    return torch.full((64, 32), float(version), dtype=torch.bfloat16)


def open_halves(rank, sockets, remote=(), **options):
    """Rank r holds tensor r."""
    rank.tensors = {f"tensor.{rank.number}": value(0)}
    rank.exporter = lockstep.Publisher.from_tensors(
        lambda: rank.tensors,
        socket=sockets[rank.number],
        model="actor",
        on_agent_host=rank.number not in remote,
        call_timeout=20,
        **options,
    )
    return rank.exporter.run


def open_with_a_bad_rank(rank, socket):
    tensor = value(0) if rank.number == 0 else torch.sparse_coo_tensor(size=(2, 2))
    lockstep.Publisher.from_tensors({f"tensor.{rank.number}": tensor}, socket=socket, model="actor")


def publish(rank, version):
    for tensor in rank.tensors.values():
        tensor.fill_(float(version))
    rank.exporter.publish(version=version)


def expected(version: int):
    return {f"tensor.{number}": value(version) for number in range(2)}


def publish_another_shape(rank, version):
    """Rank 1 has a tensor of another shape, this once."""
    kept = dict(rank.tensors)
    if rank.number == 1:
        rank.tensors["tensor.1"] = value(0)[:32]
    try:
        return refusal(rank, publish, version)
    finally:
        rank.tensors = kept


def publish_interrupted(rank, version, interrupted):
    """Rank 1 gets Ctrl-C in the exchange, where rank 0 keeps it waiting for more than half a second after;
    `interrupted`: a path."""
    if rank.number == 0:
        wait_until(interrupted.exists, "rank 1 is interrupted")
        time.sleep(0.6)
        publish(rank, version)
        return "published"

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background with it ignored

    def interrupt():
        deadline = time.monotonic() + 10
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        interrupted.touch()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        publish(rank, version)
    except KeyboardInterrupt:
        waited = time.time() - interrupted.stat().st_mtime
        return "interrupted after the exchange" if waited > 0.5 else "interrupted in the middle"
    return "not interrupted"


def publish_next(rank, step):
    for tensor in rank.tensors.values():
        tensor.fill_(float(step))
    return rank.exporter.publish(f"step {step}").version


def fail_alone(rank, version):
    """Rank 0 tries a version that the others never hear of."""
    return refusal(rank, lambda rank: rank.exporter.publish(version=version, tensors={})) if rank.number == 0 else None


def test_ranks_agree_on_numbers_and_none_is_given_twice(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(TWO) as ranks:
        ranks.call(open_halves, [agent.socket] * 2)
        assert ranks.call(publish_next, 1) == [1, 1]
        receiver.wait_for(expected(1))
        failed = ranks.call(publish_another_shape, 2)
        assert failed[1][0] == "BadDataError" and failed[0][0] in ("", "AbortedError")  # rank 0 may be done before
        assert ranks.call(publish_next, 3) == [3, 3]
        kind, sentence = ranks.call(fail_alone, 9)[0]
        assert kind == "BadDataError" and "reads its own" in sentence
        assert ranks.call(publish_next, 4) == [10, 10]
    receiver.wait_for(expected(4))
    assert agent.model_status()["newest_label"] == "step 4"


def publish_in_a_fork(rank):
    """What a process that rank 0 forks off is told."""
    return in_child({"publish": rank.exporter.publish})["publish"] if rank.number == 0 else ""


def test_a_forked_process_asks_no_rank_for_a_number(cluster):
    agent = cluster.agent()
    with Ranks(TWO, timeout_s=30) as ranks:
        ranks.call(open_halves, [agent.socket] * 2)
        assert ranks.call(publish_in_a_fork)[0].startswith("StateError: the publisher ")
        assert ranks.call(publish_next, 1) == [1, 1]


def publish_closed(rank):
    """Rank 1 has closed its publisher."""
    if rank.number == 1:
        rank.exporter.close()
    return refusal(rank, lambda rank: rank.exporter.publish())


def test_a_rank_that_is_closed_is_told_to_those_that_agree_on_a_number(cluster):
    agent = cluster.agent()
    with Ranks(TWO, timeout_s=30) as ranks:
        ranks.call(open_halves, [agent.socket] * 2)
        (kind, sentence), (own, _) = ranks.call(publish_closed)
    assert (kind, own) == ("AbortedError", "StateError") and "rank 1 cannot publish: StateError" in sentence


def test_a_rank_that_cannot_describe_its_part_fails_all_ranks_at_once(cluster):
    agent = cluster.agent()
    with Ranks(TWO, timeout_s=20) as ranks:
        first, second = ranks.call(refusal, open_with_a_bad_rank, agent.socket)
    assert first[0] == "AbortedError" and "rank 1" in first[1] and "sparse" in first[1]
    assert second[0] == "BadDataError" and "tensor.1" in second[1]


def test_ranks_that_reach_different_agents_are_refused_naming_both_runs(cluster):
    other = Cluster()
    try:
        sockets = [cluster.agent().socket, other.agent().socket]
        with Ranks(TWO) as ranks:
            answers = ranks.call(refusal, open_halves, sockets)
        assert all(kind == "AbortedError" and "different agents" in text for kind, text in answers)
    finally:
        other.close()


def test_versions_are_not_skipped_where_some_ranks_cannot_see_that_the_agent_is_away(cluster):
    with Ranks(TWO, timeout_s=20) as ranks:
        sockets = [cluster.agent().socket] * 2
        answers = ranks.call(refusal, open_halves, sockets, remote=[1], skip_while_away=True)
    assert all(kind == "BadDataError" and "skip_while_away" in text for kind, text in answers)


def test_all_ranks_know_the_run_and_give_it_back_to_go_on(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(TWO) as ranks:
        runs = ranks.call(open_halves, [agent.socket] * 2, remote=[1])
        assert len(set(runs)) == 1 and len(runs[0]) == 32
        ranks.call(publish, 1)
    receiver.wait_for(expected(1))
    with Ranks(TWO) as ranks:
        assert ranks.call(open_halves, [agent.socket] * 2, remote=[1], run=runs[0]) == runs
        ranks.call(publish, 2)
    receiver.wait_for(expected(2))


@pytest.mark.parametrize("remote", [[], [0], [1]])
def test_a_rank_that_fails_before_it_copies_fails_the_version_for_all_and_the_next_works(cluster, remote):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(TWO, timeout_s=30) as ranks:
        ranks.call(open_halves, [agent.socket] * 2, remote=remote)
        ranks.call(publish, 1)
        first, second = ranks.call(publish_another_shape, 2)
        assert first[0] == "AbortedError" or not remote  # a writer's share may have been taken before the other failed
        assert second[0] == "BadDataError" and "tensor.1" in second[1]
        for version in (3, 4):
            ranks.call(publish, version)
            receiver.wait_for(expected(version))


def test_ctrl_c_waits_until_the_other_rank_has_its_bytes(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(TWO) as ranks:
        ranks.call(open_halves, [agent.socket] * 2, remote=[1])
        answers = ranks.call(publish_interrupted, 1, cluster.directory / "interrupted")
        assert answers == ["published", "interrupted after the exchange"]
        receiver.wait_for(expected(1))
        ranks.call(publish, 2)
        receiver.wait_for(expected(2))


def open_stage(rank, socket, trained):
    """A layer of its own on each rank; that of rank `trained` alone trains."""
    layer, rank.tensors = torch.nn.Linear(8, 8).requires_grad_(rank.number == trained), {}
    tensors = {f"{rank.number}.{name}": parameter for name, parameter in layer.named_parameters()}
    rank.exporter = lockstep.Publisher.from_tensors(tensors, frozen="requires_grad", socket=socket, model="actor")


def test_a_rank_whose_parameters_are_all_frozen_is_one_of_a_model_that_trains(cluster):
    agent = cluster.agent()
    with Ranks(TWO) as ranks:
        ranks.call(open_stage, agent.socket, trained=1)
        for version in (1, 2, 3):
            ranks.call(publish, version)
        assert agent.model_status()["newest_version"] == 3


def test_ranks_of_which_none_trains_are_refused_together(cluster):
    agent = cluster.agent()
    with Ranks(TWO) as ranks:
        for kind, text in ranks.call(refusal, open_stage, agent.socket, trained=-1):
            assert kind == "BadDataError" and "no tensor of the model requires a gradient" in text


def plain_layer() -> "torch.nn.Linear":
    return torch.nn.Linear(8, 8)


WITHOUT_GRADIENT = {
    "a state_dict": lambda: plain_layer().state_dict(),
    "saved tensors": lambda: lambda: lockstep.saved_tensors(plain_layer()),
    "arrays": lambda: {"weight": np.zeros(3, "f4")},
    "parameters without": lambda: plain_layer().requires_grad_(False).named_parameters(),
}


@pytest.mark.parametrize("given", WITHOUT_GRADIENT.values(), ids=WITHOUT_GRADIENT.keys())
def test_frozen_by_requires_grad_is_refused_by_name_where_nothing_requires_a_gradient(cluster, given):
    agent = cluster.agent()
    refusal = 'frozen="requires_grad": no tensor of the model requires a gradient, "weight" .*state_dict.*the module'
    with pytest.raises(lockstep.BadDataError, match=refusal):
        lockstep.Publisher.from_tensors(given(), frozen="requires_grad", socket=agent.socket, model="actor")


def test_an_answer_about_what_is_frozen_may_not_change(cluster):
    agent = cluster.agent()
    layer = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    layer.bias.requires_grad_(False)
    exporter = lockstep.Publisher.from_tensors(
        dict(layer.named_parameters()), frozen="requires_grad", socket=agent.socket, model="actor"
    )
    exporter.publish(version=1)
    layer.bias.requires_grad_(True)
    with pytest.raises(lockstep.BadDataError, match='"bias".*frozen'):
        exporter.publish(version=2)
    layer.bias.requires_grad_(False)
    exporter.publish(version=3)
    assert exporter.committed_version == 3
