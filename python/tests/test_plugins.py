"""The SGLang plugin against stand-ins that have its server's interfaces, as far as the plugin uses them, and SGLang's own
hook registry and manager of weights. tests/engines has both plugins in their servers."""

import ast
import contextlib
import dataclasses
import struct
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from helpers import wait_until
from sglang_stand_ins import SGLANG, ModelRunner, Request, Scheduler, Struct, manager_of, module_of, own_module

import lockstep
from lockstep.engine import sglang as sglang_plugin
from lockstep.engine import vllm as vllm_plugin
from lockstep.engine._environment import followed


def test_a_vllm_without_weight_transfer_engines_starts_all_the_same(monkeypatch, caplog):
    module_of(monkeypatch, "vllm.distributed")
    vllm_plugin.register()
    assert "no weight transfer engines" in caplog.text


# ---- SGLang 0.5.23 ----


@pytest.fixture
def sglang(monkeypatch, receiver):
    """SGLang's own state, to be changed: rank 1 of 4."""
    receiver.layout = {"kv_b_proj.weight": ("F32", [2, 2]), **EXPERTS}
    monkeypatch.setattr(sglang_plugin, "_follower", None)
    monkeypatch.setenv("LOCKSTEP_ENGINE_SOCKET", str(receiver.path))
    monkeypatch.setenv("LOCKSTEP_MODEL", "actor")
    parallel = SimpleNamespace(
        tp_rank=1, tp_size=4, pp_rank=0, pp_size=1, dp_size=1, tp_group=SimpleNamespace(cpu_group=None)
    )
    state = SimpleNamespace(
        parallel=parallel,
        model=SimpleNamespace(weight_cache_mode="off"),
        exec=SimpleNamespace(
            moe=SimpleNamespace(enable_eplb=False, ep_num_redundant_experts=0),
            features=SimpleNamespace(enable_weights_cpu_backup=False),
        ),
    )
    getters = {f"get_{name}": (lambda own=name: getattr(state, own)) for name in vars(state)}
    module_of(monkeypatch, "sglang.srt.runtime_context", **getters)
    own_module(monkeypatch, "sglang.srt.plugins.hook_registry")
    monkeypatch.setattr(ModelRunner, "load_model", ModelRunner.load_model)  # put back what is hooked
    module_of(monkeypatch, "sglang.srt.model_executor.model_runner", ModelRunner=ModelRunner)
    module_of(monkeypatch, "sglang.srt.model_loader.loader", _initialize_model=lambda _: SglangModel())
    module_of(monkeypatch, "sglang.srt.model_loader.utils", set_default_torch_dtype=contextlib.nullcontext)
    structs = SimpleNamespace(replace=dataclasses.replace)
    module_of(monkeypatch, "msgspec", Struct=Struct, structs=structs, convert=lambda value, kind: value)
    module_of(monkeypatch, "sglang.srt.managers.io_struct", __file__=None, __getattr__=lambda name: Request)
    module_of(monkeypatch, "sglang.srt.disaggregation.utils", DisaggregationMode=Request())
    module_of(monkeypatch, "sglang.srt.utils.weight_checker", overall_checksum=None)
    own_module(monkeypatch, "sglang.srt.constants")
    own_module(monkeypatch, "sglang.srt.managers.scheduler_components.weight_updater")
    alone = {"barrier": lambda *_, **__: None, "get_world_size": lambda *_, **__: 1}
    for name, answer in alone.items():
        monkeypatch.setattr(torch.distributed, name, answer)
    monkeypatch.setattr(Scheduler, "get_internal_state", Scheduler.get_internal_state)
    module_of(monkeypatch, "sglang.srt.managers.scheduler", Scheduler=Scheduler)
    yield state
    if sglang_plugin._follower is not None:
        sglang_plugin._follower.close()


class Method:
    """A quant_method that orders experts' rows anew."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        layer.w13_weight.data = layer.w13_weight.data.flip(1)


class SglangModel(torch.nn.Module):
    """Experts, and a tensor that is computed from a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = torch.nn.Linear(2, 2, bias=False)
        self.experts = torch.nn.Module()
        self.experts.w13_weight = torch.nn.Parameter(torch.randn(2, 8, 4))
        self.experts.quant_method = Method()
        self.computed: "torch.Tensor | None" = None

    def load_weights(self, weights: "Iterator[tuple[str, torch.Tensor]]") -> None:
        given = dict(weights)
        self.kv_b_proj.weight.copy_(given["kv_b_proj.weight"])
        for expert in range(2):
            self.experts.w13_weight[expert].copy_(given[f"experts.{expert}.weight"])
        self.post_load_weights()

    def post_load_weights(self) -> None:
        doubled = self.kv_b_proj.weight.detach() * 2
        self.computed = doubled if self.computed is None else self.computed.copy_(doubled)


EXPERTS = {f"experts.{expert}.weight": ("F32", [8, 4]) for expert in range(2)}


def built() -> SglangModel:
    """A model as SGLang's loader makes it."""
    loader = sys.modules["sglang.srt.model_loader.loader"]
    model = loader._initialize_model(SimpleNamespace(dtype=torch.float32))
    model.post_load_weights()
    return model


def start_sglang() -> None:
    """What a process of SGLang does before it loads its model."""
    sglang_plugin.register()
    sys.modules["sglang.srt.plugins.hook_registry"].HookRegistry.apply_hooks()


def test_sglang_follows_once_the_model_is_loaded_with_what_its_loader_computes(sglang, receiver):
    start_sglang()
    model = built()
    assert ModelRunner(model).load_model() == "loaded"
    rank = receiver.accept()
    assert (rank.description["rank"], rank.description["world"]) == (1, 4)
    made_of = {own["name"]: [piece["tensor"] for piece in own["slices"]] for own in rank.description["parameters"]}
    whole = {"kv_b_proj.weight": ["kv_b_proj.weight"], "experts.w13_weight": list(EXPERTS)}
    assert made_of == {**whole, "computed[0]": ["kv_b_proj.weight"]}
    computed = model.computed
    rank.attached()
    rank.commit(1, 3.0)
    assert model.computed is computed and computed.unique().tolist() == [6.0]


def test_sglang_has_what_is_hooked_and_asked_for_there():
    hooked = [f"{sglang_plugin._MEMORY}.{one}_memory_occupation" for one in ("release", "resume")]
    around = (*sglang_plugin._WRITERS, sglang_plugin._CHECK, sglang_plugin._END)
    for target in (sglang_plugin._LOAD_MODEL, sglang_plugin._STATE, *hooked, *around):
        module, kind, method = target.rsplit(".", 2)
        source = ast.parse((SGLANG / module.replace(".", "/")).with_suffix(".py").read_text())
        classes = [node for node in source.body if isinstance(node, ast.ClassDef) and node.name == kind]
        methods = [node for node in classes[0].body if isinstance(node, ast.FunctionDef) and node.name == method]
        assert methods[0].args.args[0].arg == "self" and ("tags" in ast.unparse(methods[0]) or target not in hooked)
    assert f'GPU_MEMORY_TYPE_WEIGHTS = "{sglang_plugin._WEIGHTS}"' in (SGLANG / "sglang/srt/constants.py").read_text()
    structs = (SGLANG / "sglang/srt/managers/io_struct.py").read_text()
    assert "class GetInternalStateReqOutput" in structs and "internal_state: Dict[str, Any]" in structs
    assert '"reset_tensors"' in (SGLANG / "sglang/srt/utils/weight_checker.py").read_text()
    fields = (SGLANG / "sglang/srt/arg_groups/fields/exec_.py").read_text()
    assert "enable_weights_cpu_backup:" in fields


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("tags", [None, ["weights", "kv_cache"]])
def test_sglang_sleeps_before_its_weights_are_released_and_wakes_once_they_are_back(sglang, receiver, tags, kept):
    sglang.exec.features.enable_weights_cpu_backup = kept
    start_sglang()
    model = built()
    ModelRunner(model).load_model()
    rank = receiver.accept()
    manager, seen = manager_of(model)
    rank.attached()
    rank.commit(1, 3.0)
    for method in (manager.release_memory_occupation, manager.resume_memory_occupation):
        method(Request(tags=["kv_cache"]))
    assert sglang_plugin._follower.served.version == 1
    manager.release_memory_occupation(Request(tags=tags))
    assert ("released weights", None) in seen
    assert receiver.accept().state == "asleep"
    manager.resume_memory_occupation(Request(tags=tags))
    assert ("resumed weights", None) in seen
    awake = receiver.accept()
    assert (awake.state, awake.version) == ("waiting", 1 if kept else 0)


def commit_awake(receiver, version, value):
    """A commit to the rank that stays: one that fell asleep and woke at once may attach twice as awake."""
    while True:
        with contextlib.suppress(ConnectionError, struct.error):
            rank = receiver.accept()
            if rank.state != "asleep":
                rank.attached()
                rank.commit(version, value)
                return rank


@pytest.mark.parametrize("ends", ["well", "broken"])
@pytest.mark.parametrize("way", ["from_disk", "from_tensor", "from_distributed", "from_ipc", "reset_tensors"])
def test_sglang_weights_that_it_wrote_itself_are_no_version_and_are_written_whole(sglang, receiver, way, ends):
    start_sglang()
    model = built()
    ModelRunner(model).load_model()
    manager, seen = manager_of(model)
    rank = receiver.accept()
    rank.attached()
    rank.commit(1, 3.0)
    manager.begin_weight_update(Request())
    manager.check_weights(Request(action="checksum"))
    assert sglang_plugin._follower.served.version == 1
    seen += ["broken"] * (ends == "broken")
    with contextlib.suppress(RuntimeError):
        if way == "reset_tensors":
            manager.check_weights(Request(action=way))
        else:
            getattr(manager, f"update_weights_{way}")(Request(names=[], dtypes=[], shapes=[]))
    written = [what for what in seen if what != "broken"]
    assert written and {served for _, served in written} == {None}
    awake = commit_awake(receiver, 2, 5.0)
    assert (awake.state, awake.version) == ("waiting", 0) and rank.is_closed()
    assert model.kv_b_proj.weight.unique().tolist() == [5.0]


def test_sglang_a_draft_model_is_not_written_and_the_log_says_so(sglang, caplog):
    start_sglang()
    assert ModelRunner(torch.nn.Linear(2, 2), is_draft_worker=True).load_model() == "loaded"
    assert sglang_plugin._follower is None
    assert "lockstep does not write the draft model, Linear" in caplog.text


@pytest.mark.parametrize("compares", [False, True])
def test_sglang_computes_nothing_of_its_own_at_the_end_of_a_session_that_was_written_in_place(
    sglang, receiver, monkeypatch, compares
):
    monkeypatch.setenv("LOCKSTEP_ENGINE_COMPARE", str(int(compares)))
    start_sglang()
    model = built()
    ModelRunner(model).load_model()
    manager, seen = manager_of(model)
    for call in (manager.end_weight_update, manager.begin_weight_update, manager.end_weight_update):
        call(Request())
    assert seen == [("ended", compares)]


def test_sglang_says_in_its_state_which_start_of_it_follows(sglang, receiver):
    start_sglang()
    assert Scheduler().get_internal_state(None).internal_state == {"memory": 1}
    ModelRunner(built()).load_model()
    rank = receiver.accept()
    said = {"memory": 1, "lockstep": rank.attach["incarnation"]}
    assert Scheduler().get_internal_state(None).internal_state == said


def test_sglang_without_its_socket_is_left_alone(sglang, monkeypatch):
    monkeypatch.delenv("LOCKSTEP_ENGINE_SOCKET")
    start_sglang()
    assert ModelRunner(built()).load_model() == "loaded" and sglang_plugin._follower is None


def test_an_environment_that_lacks_the_models_name_or_is_not_understood_is_refused(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_ENGINE_SOCKET", "/run/engine.sock")
    monkeypatch.delenv("LOCKSTEP_MODEL", raising=False)
    with pytest.raises(lockstep.BadDataError, match=r"\$LOCKSTEP_MODEL must be set"):
        followed()
    monkeypatch.setenv("LOCKSTEP_MODEL", "actor")
    for value, compares in (("0", False), ("1", True)):
        monkeypatch.setenv("LOCKSTEP_ENGINE_COMPARE", value)
        assert followed().compare_only is compares
    monkeypatch.setenv("LOCKSTEP_ENGINE_COMPARE", "yes")
    with pytest.raises(lockstep.BadDataError, match=r"\$LOCKSTEP_ENGINE_COMPARE is 'yes'; it must be 0 or 1"):
        followed()


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda state: setattr(state.parallel, "dp_size", 2), "data-parallel"),
        (lambda state: setattr(state.model, "weight_cache_mode", "client"), "weight cache"),
        (lambda state: setattr(state.exec.moe, "enable_eplb", True), "EPLB"),
        (lambda state: setattr(state.parallel, "dcp_replicate_q_proj", True), "--dcp-replicate-q-proj"),
    ],
)
def test_sglang_settings_that_are_not_known_are_refused(sglang, change, problem):
    change(sglang)
    with pytest.raises(lockstep.BadDataError, match=problem):
        sglang_plugin.follow(SglangModel())


def refused(receiver, model: torch.nn.Module, reason: str) -> None:
    """Expects that the model is not followed once the trainer's tensors are known, and why."""
    follower = sglang_plugin.follow(model)
    receiver.tell_layout()
    wait_until(lambda: reason in (follower.error or ""), reason)


def test_sglang_a_model_of_which_it_takes_no_new_weights_is_refused_in_its_words(sglang, receiver, monkeypatch):
    name = "sglang.srt.model_executor.model_runner_components.weight_updater"
    reason = "Online weight updates are not supported while compensated mHC weight splits are active"
    module_of(monkeypatch, name, _unsupported_derived_weight_cache_error=lambda model: reason)
    start_sglang()
    refused(receiver, built(), reason)


def test_sglang_experts_that_it_ordered_anew_are_refused_by_name(sglang, receiver):
    start_sglang()
    model = built()
    model.experts.quant_method.process_weights_after_loading(model.experts)
    refused(receiver, model, "parameter experts.w13_weight was given other values after it was loaded")


def test_a_model_that_sglang_did_not_build_is_refused(sglang):
    with pytest.raises(lockstep.BadDataError, match="SGLang did not build this model itself"):
        sglang_plugin.follow(SglangModel())
