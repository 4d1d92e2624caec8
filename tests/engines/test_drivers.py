"""Receivers with engines of every kind of server: real daemons against the conformance servers' control ports."""

import contextlib
import json
import re
import subprocess

import pytest
from conformance_server import KINDS, ConformanceServer
from harness import MODEL, RAAS_RECEIVER, ROOT, wait_until
from ports import ReservedPort
from safetensors.numpy import save_file
from toy_weights import digest_of_tensors, weights


class Setting:
    """An agent with a publisher, and an engine that starts with the weights of version 0."""

    def __init__(self, cluster, kind: str, **options) -> None:
        self.cluster = cluster
        self.kind = kind
        self.rules = KINDS[kind]
        self.options = options
        self.start_directory = cluster.directory / "start"
        self.start_directory.mkdir()
        self.tensors = weights(0)
        self.digests = {0: digest_of_tensors(self.tensors)}
        save_file(self.tensors, self.start_directory / "model.safetensors")
        self.agent = cluster.agent()
        self.stack = contextlib.ExitStack()
        self.publisher = self.stack.enter_context(self.agent.publisher(self.tensors))

    def engine(self, port: int = 0) -> ConformanceServer:
        return self.stack.enter_context(ConformanceServer(self.kind, self.start_directory, port, **self.options))

    def receiver(self, url: str, **options):
        options = {"engine_timeout": "20s", "engine_attempts": 1, **options}
        options.setdefault("engine_load_timeout", options["engine_timeout"])
        return self.cluster.receiver(self.agent, engine=f"{self.kind}:{url}", **options)

    def publish(self, version: int, label: "str | None" = None) -> None:
        """A version that differs from the one before in every tensor, somewhere."""
        for index, tensor in enumerate(self.tensors.values()):
            tensor[version % 32, index] += 1 + version
        self.digests[version] = digest_of_tensors(self.tensors)
        self.publisher.publish(version=version, tensors=self.tensors, label=label)

    def serves(self, engine: ConformanceServer, version: int) -> bool:
        """Whether it runs with all that version is, and nothing else."""
        state = engine.state()
        whole = state["digest"] == self.digests[version] and not state["mixed"]
        named = not self.rules.keeps_names or state["weight_version"].partition("/")[0].endswith(f"-{version}")
        return whole and not state["paused"] and named


@pytest.fixture
def settings(cluster):
    """Makes the test's Setting, and ends it."""
    with contextlib.ExitStack() as stack:

        def make(kind: str, **options) -> Setting:
            setting = Setting(cluster, kind, **options)
            stack.callback(setting.stack.close)
            return setting

        yield make


@pytest.fixture(params=KINDS)
def setting(request, settings):
    return settings(request.param)


def test_a_receiver_of_several_models_gives_each_engine_its_own(setting):
    """As an adapter's beside its base model's server."""
    told = setting.cluster.directory / "told"
    with setting.engine() as engine, setting.agent.publisher(weights(7), model="adapter") as adapter:
        config = setting.cluster.directory / "receiver.toml"
        config.write_text(
            f'[[engine]]\nname = "base"\nmodel = "{MODEL}"\nurl = "{engine.url}"\n'
            f'[[engine]]\nname = "lora"\nmodel = "adapter"\ncommand = "echo $LOCKSTEP_MODEL $LOCKSTEP_VERSION >> {told}"\n'
        )
        receiver = setting.cluster.receiver(setting.agent, models=(MODEL, "adapter"), config=config)
        setting.publish(1)
        wait_until(lambda: setting.serves(engine, 1), "the base's version 1 is served")
        for version in (1, 2):
            adapter.publish(version=version, tensors=weights(7 + version))
            wait_until(lambda: told.exists() and f"adapter {version}\n" in told.read_text(), "the adapter is loaded")
        assert told.read_text() == "adapter 1\nadapter 2\n"
        assert [e["name"] for e in receiver.model_status()["engines"]] == ["base"]
        assert [e["name"] for e in receiver.model_status("adapter")["engines"]] == ["lora"]
    assert engine.violations == []


@pytest.mark.parametrize(
    ("settings_of_engines", "refusal"),
    [
        (["--engine", "triton:http://x"], "--engine triton:http://x is not [NAME=][KIND:]URL or [NAME=]hook:COMMAND"),
        (["--engine", "vllm:localhost:8000"], "http://"),
        (["--engine", "http://a:1", "--engine", "http://b:1"], "another engine is called default; give each a name"),
        (["--engine", "a=http://x:1", "--engine", "b=http://x:1"], "another engine is at http://x:1"),
        (["--engine", "http://x:1", "--model", "critic"], "a server holds one model, and 2 are followed"),
        (["--engine-load", "in-place"], "engine-load in-place and allow-engines need engine-socket"),
        (["--engine-attempts", "0", "--engine", "http://x:1"], "--engine-attempts is 0; it must be 1 to 100"),
        (["--allow-engines", "9-1", "--engine-socket", "s"], '--allow-engines: "9-1" is no PORT or FIRST-LAST'),
        (["--allow-engines", "9"], "engine-load in-place and allow-engines need engine-socket"),
        ('[[engine]]\nurl = "http://x:1"\nspeed = 1\n', "receiver.toml:1: key 'engine': unknown key 'speed'"),
        ('[[engine]]\nname = "a b"\n', 'an engine is called "a b"; a name has 1 to 64 of'),
        ('[[engine]]\ncommand = "true"\nattempts = 0\n', "receiver.toml:1: key 'engine': attempts is 0"),
        ('[[engine]]\ncommand = "true"\nmodel = "critic"\n', "model critic is not followed"),
        ('[[engine]]\nurl = "http://x:1"\ncheck = "some"\n', "engine-check is some; give checksums"),
    ],
)
def test_engines_that_cannot_be_are_refused_by_name_at_start(tmp_path, settings_of_engines, refusal):
    command = [RAAS_RECEIVER, "--model", MODEL, "--root", tmp_path / "root", "--control-socket", "none"]
    if isinstance(settings_of_engines, str):
        (tmp_path / "receiver.toml").write_text(settings_of_engines)
        settings_of_engines = ["--config", tmp_path / "receiver.toml"]
    result = subprocess.run([*command, *settings_of_engines], capture_output=True, text=True, timeout=30)
    assert result.returncode in (64, 78), result.stderr
    assert refusal in result.stderr


def test_a_server_is_asked_of_which_kind_it_is(setting):
    with setting.engine() as engine:
        receiver = setting.cluster.receiver(setting.agent, engine=engine.url, engine_attempts=1)
        setting.publish(1)
        wait_until(lambda: setting.serves(engine, 1), "version 1 is served")
        [shown] = receiver.model_status()["engines"]
        assert (shown["kind"], shown["url"]) == (setting.kind, engine.url)
    assert engine.violations == []


def test_a_server_that_is_there_later_is_asked_then(setting):
    with ReservedPort() as port:
        receiver = setting.cluster.receiver(setting.agent, engine=f"a=http://{port.address}", engine_attempts=1)
        setting.publish(1)
        wait_until(lambda: receiver.model_status()["engine_failures"], "it is not there")
        [shown] = receiver.model_status()["engines"]
        assert (shown["name"], shown["kind"], shown["state"]) == ("a", "server", "failing")
        with setting.engine(port.number) as engine:
            wait_until(lambda: setting.serves(engine, 1), "version 1 is served")
            assert receiver.model_status()["engine_kinds"] == setting.kind


def test_every_kind_of_engine_has_a_row_in_the_operators_table():
    shown = subprocess.run([RAAS_RECEIVER, "--help"], capture_output=True, text=True, check=True).stdout
    [kinds] = re.findall(r"hook:COMMAND, KIND (.+?); without", " ".join(shown.split()))
    table = (ROOT / "docs/howto/engines.md").read_text().partition("| `--engine` |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(?:(\w+):)?http", table, re.MULTILINE)
    assert rows[0] == "" and {*rows[1:], "server"} == set(re.split(", | or ", kinds))


def test_debug_shows_every_call_to_the_server_with_its_answer(setting):
    with setting.engine() as engine:
        receiver = setting.receiver(engine.url, log_level="debug", engine_check="checksums")
        setting.publish(1)
        wait_until(lambda: setting.serves(engine, 1), "version 1 is served")
        wait_until(lambda: "engine_loaded" in receiver.log(), "it is logged")
    calls = [json.loads(line) for line in receiver.log().splitlines() if '"engine_called"' in line]
    update = f"POST {engine.url}{setting.rules.update_path}"
    assert {(line["level"], line["answer"]) for line in calls if line["call"] == update} == {("debug", "200")}
    assert all(line["duration_s"] >= 0 for line in calls)
    assert any("_checker" in line["call"] for line in calls)


@pytest.mark.parametrize("fault", [{"kind": "hang"}, {"kind": "reset", "effect": True}, {"kind": "garbage"}])
def test_whatever_an_engine_answers_it_ends_with_the_newest_version(setting, fault):
    with setting.engine() as engine:
        setting.receiver(engine.url, engine_timeout="1s", engine_attempts=12)
        setting.publish(1)
        wait_until(lambda: setting.serves(engine, 1), "version 1 is served")
        for endpoint in sorted(set(engine.paths())):
            engine.fault(endpoint, **fault)
        setting.publish(2)
        wait_until(lambda: setting.serves(engine, 2), "version 2 is served", timeout_s=120)
    assert engine.violations == []


def test_an_engine_that_hangs_is_named_and_not_ready_long_before_its_time_is_over(setting):
    with setting.engine() as engine:
        receiver = setting.receiver(engine.url, engine_timeout="5s", engine_late_after="300ms")
        setting.publish(1)
        wait_until(lambda: setting.serves(engine, 1), "version 1 is served")
        wait_until(lambda: receiver.ctl("health", "readiness").returncode == 0, "it is ready")
        engine.fault(setting.rules.pause_path, "hang")
        setting.publish(2)
        wait_until(lambda: receiver.ctl("health", "readiness").returncode != 0, "it is not ready")
        assert f"at {engine.url}: version 2 is not served after" in receiver.model_status()["last_error"]
        assert "engine_late" in receiver.log()
        assert not setting.serves(engine, 2)
        wait_until(lambda: setting.serves(engine, 2), "version 2 is served", timeout_s=120)
        wait_until(lambda: receiver.ctl("health", "readiness").returncode == 0, "it is ready again")
        assert receiver.model_status()["last_error"] == ""
    assert engine.violations == []


@pytest.mark.parametrize(("kind", "fails"), [*((kind, False) for kind in KINDS), ("vllm", True)])
def test_a_receiver_that_is_killed_amid_a_load_comes_back_and_finishes_it(settings, kind, fails):
    setting = settings(kind, load_s=0.5)
    with setting.engine() as engine:
        receiver = setting.receiver(engine.url)
        if fails:
            engine.fault(setting.rules.update_path, "partial")
        setting.publish(1)
        wait_until(lambda: setting.rules.update_path in engine.paths(), "the load has begun")
        receiver.kill()
        receiver.start()
        wait_until(lambda: setting.serves(engine, 1), "version 1 is served")
    assert engine.violations == []


def test_a_receiver_that_ends_resumes_an_engine_that_it_had_paused(setting):
    with setting.engine() as engine:
        receiver = setting.receiver(engine.url, engine_timeout="1m", drain_timeout="500ms")
        setting.publish(1)
        wait_until(lambda: setting.serves(engine, 1), "version 1 is served")
        engine.fault(setting.rules.pause_path, "hang", effect=True)
        setting.publish(2)
        wait_until(lambda: engine.state()["paused"], "the engine is paused")
        assert receiver.stop(timeout_s=30) == 0
        assert setting.serves(engine, 1)


def test_a_rollback_reaches_the_engine(setting):
    with setting.engine() as engine:
        receiver = setting.receiver(engine.url)
        for version in (1, 2):
            setting.publish(version)
            wait_until(lambda: setting.serves(engine, version), f"version {version} is served")
        assert receiver.ctl("rollback", MODEL).returncode == 0
        assert setting.serves(engine, 1)


def test_what_keeps_an_engine_from_a_version_is_in_the_status(settings):
    setting = settings("vllm", absent=("/is_paused",))
    with setting.engine() as engine:
        receiver = setting.receiver(engine.url)
        setting.publish(1)
        wait_until(lambda: "VLLM_SERVER_DEV_MODE=1" in json.dumps(receiver.model_status()), "the status says why")
