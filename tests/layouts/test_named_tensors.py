"""Tensors under their HuggingFace names, as trainers make them."""

import numpy as np
import pytest
import torch
from harness import MODEL

import lockstep


def test_tensors_that_a_function_makes_for_a_version_are_kept_until_they_are_copied(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    trained = {f"layer.{number}": torch.full((1 << 18,), float(number)) for number in range(8)}

    def made():
        return {name: tensor.bfloat16() for name, tensor in trained.items()}

    with lockstep.Publisher.from_tensors(made, socket=agent.socket, model=MODEL) as exporter:
        for version in range(1, 4):
            for tensor in trained.values():
                tensor.add_(1)
            exporter.publish(version=version)
            receiver.wait_for(made())


@pytest.mark.parametrize("zeros", [torch.zeros, lambda extent: np.zeros(extent, "f4")], ids=["torch", "numpy"])
def test_a_tensor_that_took_the_place_of_another_is_published(cluster, zeros):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    weights = {"w": zeros(3), "kept": zeros(5)}
    with lockstep.Publisher.from_tensors(weights, socket=agent.socket, model=MODEL) as publisher:
        for version in range(1, 4):
            weights["w"] = weights["w"] + 1
            publisher.publish(version=version)
            receiver.wait_for({name: torch.as_tensor(tensor) for name, tensor in weights.items()})


def test_pairs_that_can_be_read_only_once_are_kept(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    layer = torch.nn.Linear(4, 3)
    with lockstep.Publisher.from_tensors(layer.named_parameters(), socket=agent.socket, model=MODEL) as publisher:
        for version in (1, 2):
            with torch.no_grad():
                layer.weight.add_(1)
            publisher.publish(version=version)
            receiver.wait_for(layer.state_dict())


CHANGES = {
    "shape": (lambda weights: weights.update(b=torch.zeros(4)), r'tensor "b", F32 \[4\] .* opened with .* \[3\]'),
    "dtype": (lambda weights: weights.update(b=torch.zeros(3).half()), 'tensor "b", F16 .* opened with .* F32'),
    "gone": (lambda weights: weights.pop("b"), 'no longer has tensor "b", which it was opened with'),
    "new": (lambda weights: weights.update(c=torch.zeros(3)), 'has tensor "c", which it was opened without'),
    "renamed": (lambda weights: weights.update(c=weights.pop("b")), 'no longer .* "b".*; .* has tensor "c", which'),
    "many": (lambda weights: weights.clear(), 'no longer has tensors "a", "b", "m0", and 7 more, which'),
}


def test_a_tensor_that_is_given_twice_is_refused_by_name(cluster):
    agent = cluster.agent()
    pairs = [("a", torch.zeros(2)), ("b", torch.zeros(3))]
    with lockstep.Publisher.from_tensors(pairs, socket=agent.socket, model=MODEL) as publisher:
        publisher.publish(1)
        pairs.append(pairs[1])
        with pytest.raises(lockstep.BadDataError, match='gives tensor "b" twice; give each once'):
            publisher.publish(2)


@pytest.mark.parametrize("change, refusal", CHANGES.values(), ids=CHANGES.keys())
def test_tensors_that_are_not_those_of_the_opening_are_refused_by_name(cluster, change, refusal):
    agent = cluster.agent()
    opened = {"a": torch.zeros(2), "b": torch.zeros(3), **{f"m{number}": torch.zeros(1) for number in range(8)}}
    weights = dict(opened)
    with lockstep.Publisher.from_tensors(weights, socket=agent.socket, model=MODEL) as publisher:
        publisher.publish(1)
        change(weights)
        with pytest.raises(lockstep.BadDataError, match=refusal):
            publisher.publish(2)
        weights.clear()
        weights.update(opened)
        assert publisher.publish(3).version == 3
