"""The plugin in a process of vLLM: found by its entry point, created by its factory, with its own models and groups."""

import ast
from pathlib import Path

import pytest
import torch
from fake_receiver import FakeReceiver
from safetensors.torch import load_file


def layout_of(checkpoint: Path) -> "dict[str, tuple[str, list[int]]]":
    """What a receiver knows of a trainer that publishes it."""
    dtypes = {torch.bfloat16: "BF16", torch.float32: "F32"}
    tensors = load_file(checkpoint / "model.safetensors")
    return {name: (dtypes[tensor.dtype], list(tensor.shape)) for name, tensor in tensors.items()}


@pytest.fixture
def vllm(vllm_ranks):
    """A rank of vLLM."""
    return vllm_ranks[0]


@pytest.fixture
def receiver(tmp_path):
    """What the plugin attaches to."""
    receiver = FakeReceiver(tmp_path / "engine.sock")
    yield receiver
    receiver.close()


@pytest.fixture
def create(vllm, vllm_checkpoints, receiver):
    """Builds a model and the plugin's engine for it, shut down at the end; its checkpoint and configuration."""
    vllm.ask("load_plugins")

    def create(model: str, tensor=(1, 0), data=(1, 0), expert_parallel=False, repacked=""):
        directory, config = vllm_checkpoints.get(model)
        receiver.layout = layout_of(directory)
        vllm.ask("build", checkpoint=directory, tensor=tensor, data=data, expert_parallel=expert_parallel)
        vllm.ask("load", checkpoint=directory)
        assert vllm.ask("create_engine", backend="lockstep", repacked=repacked) == "LockstepWeightTransferEngine"
        return directory, config

    yield create
    vllm.ask("shut_down")


@pytest.fixture
def built(vllm, vllm_checkpoints, receiver):
    """A rank with a built model. It is shut down at the end."""
    checkpoint, _ = vllm_checkpoints.get("llama")
    receiver.layout = layout_of(checkpoint)
    vllm.ask("build", checkpoint=checkpoint, tensor=(1, 0), data=(1, 0), expert_parallel=False)
    yield vllm
    vllm.ask("shut_down")


@pytest.mark.parametrize("backend", [None, "lockstep"])
def test_by_the_environment_alone_a_worker_follows_once_its_model_is_loaded(backend, built, receiver):
    environment = {"LOCKSTEP_ENGINE_SOCKET": receiver.path, "LOCKSTEP_MODEL": "actor", "LOCKSTEP_ENGINE_NAME": "two"}
    assert built.ask("start", environment=environment, backend=backend) == "LockstepWeightTransferEngine"
    attach = receiver.accept().attach
    assert (attach["model"], attach["engine"]) == ("actor", "two")
    assert {own["name"] for own in attach["description"]["parameters"]} >= {"model.norm.weight"}
    said = built.ask("collective_rpc", method="lockstep_incarnation", arguments=[])
    assert said == attach["incarnation"]


def test_without_the_environment_vllm_is_left_alone(built):
    assert built.ask("start", environment={}, backend=None) is None


@pytest.mark.parametrize(
    "environment, problem",
    [
        ({"LOCKSTEP_ENGINE_SOCKET": "/run/engine.sock"}, r"\$LOCKSTEP_MODEL must be set"),
        ({"LOCKSTEP_ENGINE_SOCKET": "/run/engine.sock", "LOCKSTEP_MODEL": "actor"}, "has nccl: weights come by one"),
    ],
)
def test_an_environment_that_makes_no_sense_ends_the_start_and_says_why(environment, problem, built):
    backend = "nccl" if "LOCKSTEP_MODEL" in environment else None
    with pytest.raises(AssertionError, match=problem):
        built.ask("start", environment=environment, backend=backend)


def test_weights_that_vllm_shares_with_other_servers_are_refused(built, receiver):
    environment = {"LOCKSTEP_ENGINE_SOCKET": receiver.path, "LOCKSTEP_MODEL": "actor"}
    with pytest.raises(AssertionError, match="ValueError: .*ipc_cache.*start with another --load-format"):
        built.ask("start", environment=environment, backend=None, load_format="ipc_cache")


def test_what_vllm_computes_from_weights_is_computed_anew_with_every_version(built, receiver):
    built.ask("add_draft")
    environment = {"LOCKSTEP_ENGINE_SOCKET": receiver.path, "LOCKSTEP_MODEL": "actor"}
    built.ask("start", environment=environment, backend=None)
    rank = receiver.accept()
    rank.attached()
    for version in (1, 2):
        rank.commit(version, version / 4)
        built.ask("update", update_info={"version": version, "timeout_s": 20})
        assert built.ask("stale") == []


@pytest.mark.parametrize("release", ["gpu_model_runner", "gpu/model_runner"])
def test_vllm_has_what_is_called_there(release):
    path = Path(__file__).resolve().parents[2] / ".cache" / "vllm" / "vllm" / "v1" / "worker" / f"{release}.py"
    [runner] = [node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == "GPUModelRunner"]
    [reload] = [node for node in runner.body if getattr(node, "name", "") == "reload_weights"]
    calls = [line.strip() for line in ast.unparse(reload).splitlines() if line.strip().startswith("self.reset_")]
    assert calls == ["self.reset_lora_state()", "self.reset_encoder_cache()", "self.reset_mm_cache()"]


# The model, vLLM's groups, which group of the engine, and (rank, world) there.
PLACES = {
    "llama-tp2": ("llama", {"tensor": (2, 1)}, 0, (1, 2)),
    "llama-tp2-dp2": ("llama", {"tensor": (2, 0), "data": (2, 1)}, 1, (0, 2)),
    "qwen3_moe-tp2": ("qwen3_moe", {"tensor": (2, 1)}, 0, (1, 2)),
    "qwen3_moe-ep2": ("qwen3_moe", {"tensor": (2, 1), "expert_parallel": True}, 0, (1, 2)),
    "qwen3_moe-dp2": ("qwen3_moe", {"data": (2, 1), "expert_parallel": True}, 0, (1, 2)),
    "mixtral-tp2-dp2": ("mixtral", {"tensor": (2, 1), "data": (2, 1)}, 0, (3, 4)),
    "deepseek_v3-tp1": ("deepseek_v3", {}, 0, (0, 1)),
    "glm4_moe-tp2": ("glm4_moe", {"tensor": (2, 0)}, 0, (0, 2)),
}


@pytest.mark.parametrize(("model", "groups", "group", "rank"), PLACES.values(), ids=PLACES)
def test_it_tells_the_rank_that_vllm_is_and_the_parameters_that_it_has(
    model, groups, group, rank, create, vllm, vllm_loader, receiver
):
    directory, _ = create(model, **groups)
    vllm.ask("init", init_info={"socket": str(receiver.path), "model": "actor", "engine_name": "one"})
    attach = receiver.accept().attach
    description = attach["description"]
    assert (attach["model"], attach["engine"], attach["group"]) == ("actor", "one", group)
    assert (description["rank"], description["world"]) == rank
    want = vllm_loader.parameters(directory, **groups)
    dtypes = {torch.bfloat16: "BF16", torch.float32: "F32"}
    parameters = {own["name"]: (own["dtype"], own["shape"]) for own in description["parameters"]}
    assert parameters == {name: (dtypes[tensor.dtype], list(tensor.shape)) for name, tensor in want.items()}


def test_an_update_to_a_version_that_is_not_there_fails_and_says_which_is(create, vllm, receiver):
    create("qwen3")
    vllm.ask("init", init_info={"socket": str(receiver.path), "model": "actor"})
    rank = receiver.accept()
    rank.attached()
    vllm.start("update", update_info={"version": 7, "timeout_s": 20})
    rank.commit(8, 0.5)
    with pytest.raises(AssertionError, match="RuntimeError: version 7 .* was asked for, and .*version=8"):
        vllm.answer()
    with pytest.raises(AssertionError, match="RuntimeError: the wanted version was not served within 0.1 s"):
        vllm.ask("update", update_info={"version": 9, "timeout_s": 0.1})


@pytest.mark.parametrize("info", [{"socket": "s"}, {"socket": "s", "model": "m", "port": 1}])
def test_vllm_refuses_init_infos_of_other_forms(info, create, vllm):
    create("qwen3")
    with pytest.raises(AssertionError, match="ValueError: Invalid init_info for LockstepWeightTransferEngine"):
        vllm.ask("init", init_info=info)


def _refused(vllm, receiver) -> str:
    """What the follower says, which the receiver has told its layout."""
    vllm.ask("init", init_info={"socket": str(receiver.path), "model": "actor"})
    receiver.tell_layout()
    with pytest.raises(AssertionError) as refused:
        vllm.ask("update", update_info={"version": 1, "timeout_s": 20})
    return str(refused.value)


def test_weights_that_kernels_repack_are_refused_by_name(create, vllm, receiver):
    name = "model.layers.1.mlp.experts.routed_experts.w13_weight"
    create("qwen3_moe", repacked=name)
    assert f"parameter {name} was given other values after it was loaded" in _refused(vllm, receiver)


def test_experts_that_are_balanced_over_ranks_are_refused_by_name(create, vllm, receiver):
    create("qwen3_moe")
    vllm.ask("balance_experts")
    with pytest.raises(AssertionError, match="ValueError: .*balanced over ranks"):
        vllm.ask("init", init_info={"socket": str(receiver.path), "model": "actor"})


def test_latent_attention_that_keeps_copies_once_it_moved_is_not_served(create, vllm, receiver):
    create("deepseek_v3")
    vllm.ask("init", init_info={"socket": str(receiver.path), "model": "actor"})
    rank = receiver.accept()
    rank.attached()
    rank.commit(1, 0.25)
    vllm.ask("copy_latent_views")
    rank.send_pause(2)
    assert 'mla_attn.W_UV" was bfloat16' in rank.refusal()
    with pytest.raises(AssertionError, match="W_UV was made of weights after they were loaded"):
        vllm.ask("update", update_info={"version": 2, "timeout_s": 1})


def test_latent_attention_that_keeps_copies_is_refused_by_name(create, vllm, receiver):
    create("deepseek_v3")
    vllm.ask("copy_latent_views")
    assert "model.layers.0.self_attn.mla_attn.mla_attn.W_UV was made of weights" in _refused(vllm, receiver)
