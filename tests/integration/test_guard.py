"""What versions change: counted as the agent compares them, refused by a guard, and told as numpy tells it."""

import json
import subprocess
import threading

import numpy as np
import pytest
from harness import LOCKSTEPCTL, MODEL, wait_until

import lockstep
from lockstep.control import Change

SHAPES = {
    "model.embed.weight": (300, 64),
    "model.layers.0.mlp.experts.0.up.weight": (64, 700),
    "model.layers.0.mlp.experts.1.up.weight": (64, 700),
    "model.layers.1.mlp.experts.0.up.weight": (200_000,),
    "model.norm.weight": (),
}


def weights(seed: int = 0) -> "dict[str, np.ndarray]":
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def trained(tensors, density: float = 0.01, seed: int = 1) -> "dict[str, np.ndarray]":
    """The next step: some elements of each tensor change a little."""
    random = np.random.default_rng(seed)
    step = {name: random.standard_normal(tensor.shape, np.float32) * 1e-3 for name, tensor in tensors.items()}
    return {
        name: np.where(random.random(tensor.shape) < density, tensor + step[name], tensor).astype(np.float32)
        for name, tensor in tensors.items()
    }


def with_nan(tensors, name: str) -> "dict[str, np.ndarray]":
    broken = {**tensors, name: tensors[name].copy()}
    broken[name].flat[0] = np.nan
    return broken


def change_by_numpy(before, after) -> Change:
    finite = np.isfinite(before) & np.isfinite(after)
    steps = np.abs(after.astype(np.float64) - before)[finite]
    return Change(
        elements=after.size,
        changed=int((before.view(np.uint32) != after.view(np.uint32)).sum()),
        nonfinite=int((~np.isfinite(after)).sum()),
        norm=float(np.sqrt((steps**2).sum())),
        largest=float(steps.max(initial=0)),
    )


def equal(told: Change, right: Change) -> bool:
    return (told.elements, told.changed, told.nonfinite, told.largest) == (
        right.elements,
        right.changed,
        right.nonfinite,
        right.largest,
    ) and told.norm == pytest.approx(right.norm)


def without_norms(told):
    """Sums of squares are rounded as they are added up, in whatever order."""
    if isinstance(told, dict):
        return {key: without_norms(value) for key, value in told.items() if key != "norm"}
    return [without_norms(value) for value in told] if isinstance(told, list) else told


@pytest.fixture
def agent(cluster):
    return cluster.agent()


def test_a_version_with_nan_is_refused_by_name_and_the_fleet_stays_at_the_one_before(cluster, agent):
    receiver = cluster.receiver(agent)
    first = weights()
    with agent.publisher(first, guard=lockstep.Guard()) as publisher:
        publisher.publish(version=1, tensors=first)
        receiver.wait_for(first)
        second = trained(first)
        publisher.publish(version=2, tensors=second)
        receiver.wait_for(second)
        name = "model.layers.1.mlp.experts.0.up.weight"
        with receiver.recorded_syncs() as syncs:
            with pytest.raises(lockstep.BadDataError, match=f"version 3 .* 1 elements are NaN or Inf, in {name}"):
                publisher.publish(version=3, tensors=with_nan(trained(second, seed=2), name))
            assert publisher.committed_version == 2
            assert agent.model_status()["newest_version"] == 2
            receiver.wait_for(second)
            fourth = trained(second, seed=3)
            publisher.publish(version=4, tensors=fourth)
            receiver.wait_for(fourth)
        stats = publisher.last_publication.stats()
    assert [(sync["from"]["version"], sync["to"]["version"], sync["mode"]) for sync in syncs] == [(2, 4, "delta")]
    assert stats.base == 2 and stats.all.nonfinite == 0
    assert agent.model_status()["versions_aborted"] == 1


def test_every_rank_is_told_what_its_version_breaks(agent):
    tensors = weights()
    names = list(SHAPES)
    halves = [names[:2], names[2:]]
    refused: "list[str]" = []

    def run(rank: int, given) -> None:
        guard = lockstep.Guard(largest_step=0.5)
        with agent.publisher(tensors, rank=rank, ranks=2, owns=halves[rank], guard=guard) as publisher:
            own = {name: given[0][name] for name in halves[rank]}
            publisher.publish(version=1, tensors=own)
            try:
                publisher.publish(version=2, tensors={name: given[1][name] for name in halves[rank]})
            except lockstep.BadDataError as error:
                refused.append(str(error))
            publisher.publish(version=3, tensors=own)

    far = {**tensors, names[0]: tensors[names[0]] + np.float32(1)}
    ranks = [threading.Thread(target=run, args=(rank, (tensors, far))) for rank in (0, 1)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(60)
    agent.wait_for(3)
    assert len(refused) == 2
    assert all("more than 0.5, in model.embed.weight" in text for text in refused)


def test_a_version_that_changed_too_little_or_too_much_is_refused(agent):
    first = weights()
    with agent.publisher(first, guard=lockstep.Guard(density=(1e-6, 0.5))) as publisher:
        publisher.publish(version=1, tensors=first)
        with pytest.raises(lockstep.BadDataError, match="0 of 308801 elements changed"):
            publisher.publish(version=2, tensors=first)
        with pytest.raises(lockstep.BadDataError, match="308801 of 308801 elements changed, a share of 1"):
            publisher.publish(version=3, tensors=weights(9))
        publisher.publish(version=4, tensors=trained(first))
        agent.wait_for(4)


def test_without_a_guard_nan_is_served_counted_and_logged(agent):
    first = weights()
    name = "model.norm.weight"
    with agent.publisher(first) as publisher:
        publisher.publish(version=1, tensors=first)
        publication = publisher.publish(version=2, tensors=with_nan(first, name))
        stats = publication.stats()
        kept = publisher.publish(version=3, tensors=with_nan(trained(first), name)).stats()
    assert (stats.all.nonfinite, stats.all.changed, stats.all.norm) == (1, 1, 0.0)
    assert kept.all.nonfinite == 1  # it did not change, and is still there
    assert {tensor.name for tensor in stats.tensors if tensor.change.nonfinite} == {name}
    (warned,) = (
        json.loads(line) for line in agent.log().splitlines() if "version_not_finite" in line and '"version":2' in line
    )
    assert warned["tensors"] == name


def test_what_is_told_of_each_tensor_is_what_numpy_finds_from_the_agent_and_from_the_log(cluster, agent):
    log = cluster.directory / "log"
    log.mkdir()
    writer = cluster.receiver(agent, archive=f"file://{log}")
    versions = [weights()]
    versions.append(trained(versions[0]))
    versions.append(with_nan(trained(versions[1], 0.3, seed=2), "model.embed.weight"))
    frozen = "model.layers.0.mlp.experts.1.up.weight"
    versions.append({**trained(versions[2], seed=3), frozen: versions[2][frozen]})
    with agent.publisher(versions[0]) as publisher:
        for number, tensors in enumerate(versions, start=1):
            stats = publisher.publish(version=number, tensors=tensors, label=f"step {number}").stats()
            wait_until(
                lambda: writer.model_status()["archive"].get("newest", {}).get("version") == number, "it is in the log"
            )
        told = lockstep.control.Agent(agent.address).changes(4, after=1)
        with pytest.raises(lockstep.DeadlineError, match="version 9 is not compared yet"):
            lockstep.control.Agent(agent.address).changes(9)
    command = [LOCKSTEPCTL, "--json", "log", "diff", f"file://{log}", "--model", MODEL, "1", "4"]
    from_log = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert without_norms(from_log) == without_norms(agent.ask("diff", "--model", MODEL, "1", "4"))
    assert told[-1] == stats
    for number, changes in enumerate(told, start=2):
        assert (changes.version.version, changes.base, changes.label) == (number, number - 1, f"step {number}")
        assert [tensor.name for tensor in changes.tensors] == sorted(SHAPES, key=list(SHAPES).index)
        for tensor in changes.tensors:
            right = change_by_numpy(versions[number - 2][tensor.name], versions[number - 1][tensor.name])
            assert equal(tensor.change, right), (tensor, right)
    assert told[-1].unchanged_tensors >= 1
    (expert,) = (tensor for tensor in told[-1].tensors if tensor.name == frozen)
    assert expert.change.changed == 0
    assert (expert.kind, expert.indices) == ("model.layers.*.mlp.experts.*.up.weight", (0, 1))


def test_a_guard_that_cannot_be_is_an_error(agent):
    for wrong in ({"nonfinite": "maybe"}, {"density": (0.5, 0.1)}, {"density": (0, 2)}, {"largest_step": -1.0}):
        with pytest.raises(lockstep.BadDataError, match="guard: "):
            lockstep.Guard(**wrong)
