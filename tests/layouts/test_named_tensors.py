"""Tensors under their HuggingFace names, as trainers make them."""

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
