"""The runner of tests/gpu/run.sh on steps made up for it: what it says of a run is never better than the run was."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_last
import pytest
from gpu_run import NOT_RUN, Run, Shared, Step
from gpu_steps import FIGURES as ALL_FIGURES

HERE = Path(__file__).parent
FIGURE = {"name": "rate", "value": 5.0, "unit": "GB/s", "of": "9 GB/s", "ratio": 0.55, "goal": ">= 0.9", "met": False}
ABOUT = {"digest": "d", "commit": "c", "sources": {"a.cu": "1"}}


def python(name: str, code: str, limit_s: float = 60, **options) -> Step:
    return Step(name, (sys.executable, "-c", code), limit_s, **options)


PASSES = python("passes", 'print(\'@fact\', \'{"device": "A GPU", "driver": "1.2"}\')')
FAILS = python("fails", "print('what went wrong'); raise SystemExit(3)")
CRASHES = python("crashes", "import os; os.abort()")
HANGS = python("hangs", "import time; print('began', flush=True); time.sleep(600)", limit_s=2)
MISSES = python("misses", f"import json; print('@figure', json.dumps({FIGURE!r}))")


@pytest.fixture
def run(tmp_path, capsys):
    def made(*steps: Step, seconds: float = 300) -> Run:
        (tmp_path / "shared").mkdir(exist_ok=True)
        with Shared(tmp_path / "shared") as shared:
            run = Run(tmp_path, list(steps), ABOUT, seconds, shared)
            run.go()
        return run

    return made


def results(run: Run) -> dict:
    return json.loads(run.results.read_text())


def outcomes(run: Run) -> "dict[str, str]":
    return {outcome.step: outcome.outcome for outcome in run.outcomes}


def test_no_step_that_fails_crashes_or_hangs_ends_the_others(run):
    ended = run(FAILS, CRASHES, HANGS, PASSES)
    assert outcomes(ended) == {"fails": "failed", "crashes": "failed", "hangs": "failed", "passes": "passed"}
    assert [outcome.why for outcome in ended.outcomes] == [
        "ended with status 3",
        "ended by SIGABRT",
        "not done within 2 s",
        "",
    ]
    assert ended.status() == 1
    assert ended.table().splitlines()[-1] == "4 of 4 run: 1 passed, 3 failed, 0 not run"
    assert "what went wrong" in ended.log.read_text() and "began" in ended.log.read_text()


def test_what_a_step_started_ends_with_it(run, tmp_path):
    file = tmp_path / "pid"
    code = (
        f"import subprocess, time; p = subprocess.Popen(['sleep', '600']); open({str(file)!r}, 'w').write(str(p.pid))"
    )
    run(python("leaves one", code), python("hangs with one", code.replace("pid'", "two'") + "; time.sleep(600)", 2))
    for name in ("pid", "two"):
        pid = int((tmp_path / name).read_text())
        deadline = time.monotonic() + 30
        while alive(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether it runs: a zombie that was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_was_not_run_is_neither_passed_nor_failed_and_says_why(run):
    reason = f"print('@not-run no room'); raise SystemExit({NOT_RUN})"
    ended = run(python("elsewhere", "", unless="needs 2 GPUs"), python("here", reason), PASSES)
    assert outcomes(ended) == {"elsewhere": "not run", "here": "not run", "passes": "passed"}
    assert [outcome.why for outcome in ended.outcomes[:2]] == ["needs 2 GPUs", "no room"]
    assert (ended.status(), ended.table().splitlines()[-1]) == (0, "1 of 3 run: 1 passed, 0 failed, 2 not run")


def test_a_step_that_gives_no_reason_for_not_running_has_failed(run):
    assert outcomes(run(python("silent", f"raise SystemExit({NOT_RUN})"))) == {"silent": "failed"}


def test_a_command_that_is_not_there_has_failed(run):
    assert outcomes(run(Step("missing", ("/nowhere/program",), 9), PASSES)) == {"missing": "failed", "passes": "passed"}


def test_a_goal_that_was_missed_has_failed_and_its_figure_is_kept(run):
    ended = run(MISSES)
    assert ended.outcomes[0].why == "rate is 0.55, not >= 0.9"
    assert ended.figures() == [FIGURE] and "MISSED" in ended.table()


def test_a_test_that_crashes_or_hangs_has_failed_and_those_behind_it_are_run(run, tmp_path, monkeypatch):
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import os, time\nimport pytest\n"
        "def test_one(): pass\n"
        "def test_two(): os.abort()\n"
        "def test_three(): assert False\n"
        "def test_four(): time.sleep(600)\n"
        "@pytest.mark.skip(reason='why not')\ndef test_five(): pass\n"
        "def test_six(): pass\n"
    )
    code = (
        f"import sys; sys.argv[1:] = [{str(tests)!r}]; sys.path.insert(0, {str(HERE)!r})\n"
        "import gpu_pytest\nraise SystemExit(gpu_pytest.main())"
    )
    monkeypatch.setenv("LOCKSTEP_GPU_TEST_SECONDS", "3")
    environment = {"PYTHONPATH": str(HERE)}
    ended = run(python("tests", code, environment=environment), PASSES)
    assert outcomes(ended) == {"tests": "failed", "passes": "passed"}
    assert ended.outcomes[0].why == (
        "ended with status 1; 2 passed, 1 failed, 1 not run, 2 crashed or took longer than 3 s: "
        "test_three, test_two, test_four"
    )
    log = ended.log.read_text()
    assert "Fatal Python error: Aborted" in log and "Timeout (0:00:03)!" in log  # where each was

    tests.write_text("import nothing_of_that_name\n")
    assert outcomes(run(python("tests", code, environment=environment))) == {"tests": "failed"}
    tests.write_text("def test_one(): pass\n")
    ended = run(python("tests", code, environment=environment))
    assert (ended.outcomes[0].outcome, ended.outcomes[0].why) == ("passed", "1 passed, 0 failed, 0 not run")


def test_a_torn_figure_has_failed(run):
    assert outcomes(run(python("torn", "print('@figure {\"name\": ')"))) == {"torn": "failed"}


def test_steps_for_which_no_time_is_left_are_not_run(run):
    ended = run(python("slow", "import time; time.sleep(600)", 300), PASSES, seconds=3)
    assert outcomes(ended) == {"slow": "failed", "passes": "not run"}
    assert ended.outcomes[1].why == "no time was left"


def test_a_run_that_is_cut_off_tells_what_it_found_until_then(tmp_path):
    hanging = tmp_path / "pid"  # it has a session of its own, and outlives a killed runner
    hangs = f"import os, time; open({str(hanging)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from test_runner import ABOUT, FAILS, PASSES, Run, Shared, python
steps = [PASSES, FAILS, python("hangs", {hangs!r}, 600), PASSES]
Run(Path({str(tmp_path)!r}), steps, ABOUT, 900, Shared(Path({str(tmp_path)!r}))).go()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, start_new_session=True)
    file, found = tmp_path / "results.json", {}
    deadline = time.monotonic() + 60
    while found.get("running") != "hangs" or not (hanging.exists() and hanging.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
        found = json.loads(file.read_text()) if file.exists() else {}
    process.kill()
    process.wait()
    os.kill(int(hanging.read_text()), signal.SIGKILL)
    assert (found["finished"], found["left"]) == (False, ["hangs", "passes"])
    assert [step["outcome"] for step in found["steps"]] == ["passed", "failed"]
    assert found["driver"] == "1.2"


def test_a_record_is_made_of_a_run_that_saw_a_gpu_and_of_no_other(run, tmp_path):
    record = gpu_last.record(results(run(PASSES, FAILS, MISSES)), "2030-01-02")
    assert (record["device"], record["driver"], record["date"]) == ("A GPU", "1.2", "2030-01-02")
    assert (record["passed"], record["failed"], record["figures"]) == (
        ["passes"],
        ["fails", "misses"],
        [{**FIGURE, "step": "misses"}],
    )
    assert record["shared_bytes"] == shutil.disk_usage(tmp_path).total
    assert gpu_last.record(results(run(python("nothing known", ""))), "2030-01-02") is None
    blind = Step("blind", (*PASSES.command[:2], PASSES.command[2] + "; raise SystemExit(1)"), 9)
    assert gpu_last.record(results(run(blind)), "2030-01-02") is None


LEAVES = "import os; open(os.environ['LOCKSTEP_TEST_SHARED'] + '/left', 'w').write('x' * 99)"


@pytest.mark.parametrize(
    "step",
    [
        python("passes", LEAVES),
        python("fails", LEAVES + "; raise SystemExit(1)"),
        python("crashes", LEAVES + "; os.abort()"),
        python("hangs", LEAVES + "; import time; time.sleep(600)", 2),
    ],
    ids=lambda step: step.name,
)
def test_nothing_of_a_step_stays_in_shared_memory(run, tmp_path, step):
    finds = python("finds", "import os; assert os.listdir(os.environ['LOCKSTEP_TEST_SHARED']) == []")
    assert outcomes(run(step, finds))["finds"] == "passed"
    assert list((tmp_path / "shared").iterdir()) == []


def test_what_a_killed_run_left_in_shared_memory_goes_with_the_next_one_and_no_other_runs(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, others, not_ours = (tmp_path / name for name in (f"lockstep-gpu-{ended.pid}", "lockstep-gpu-1", "else"))
    for directory in (left, others, not_ours):
        directory.mkdir()
        (directory / "file").write_text("x")
    with Shared(tmp_path):
        assert not left.exists()
    assert sorted(tmp_path.iterdir()) == [not_ours, others]


def test_a_step_that_needs_more_shared_memory_than_is_free_is_not_run(run, tmp_path):
    free = shutil.disk_usage(tmp_path).free
    ended = run(python("fits", "", shared_bytes=1), python("large", "", shared_bytes=2 * free))
    assert outcomes(ended) == {"fits": "passed", "large": "not run"}
    assert f" GB of {tmp_path / 'shared'}, and " in ended.outcomes[1].why
    assert results(ended)["shared_bytes"] == shutil.disk_usage(tmp_path).total


def test_where_there_is_no_shared_memory_what_needs_none_is_run(tmp_path, capsys):
    with Shared(tmp_path / "nowhere") as shared:
        run = Run(tmp_path, [PASSES, python("needs", "", shared_bytes=1)], ABOUT, 60, shared)
        run.go()
    assert outcomes(run) == {"passes": "passed", "needs": "not run"} and results(run)["shared_bytes"] == 0


@pytest.fixture
def pack(tmp_path):
    """A pack with nothing in it but what the runner reads."""
    root = tmp_path / "pack"
    for folder in ("tests/gpu", "programs/lib", "programs/program"):
        (root / folder).mkdir(parents=True)
    for file in [*HERE.glob("gpu_*.py"), *HERE.glob("test_gpu_*.py"), HERE / "run.sh"]:
        (root / "tests/gpu" / file.name).write_bytes(file.read_bytes())
    (root / "tests/gpu/run.sh").chmod(0o755)
    (root / "cpp_tests").write_text("cuda_copy_engine_test\n")
    (root / "sources.json").write_text(json.dumps(ABOUT))
    return root


def without_gpu(pack: Path, *arguments: str, path: Path = HERE) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(path), "CUDA_VISIBLE_DEVICES": ""}
    command = [pack / "tests/gpu/run.sh", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_without_a_gpu_nothing_is_run_and_nothing_counts(pack, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "last.json").write_text("another run's")
    ended = without_gpu(pack, "--out", str(out))
    assert ended.returncode == NOT_RUN, ended.stderr
    found = json.loads((out / "results.json").read_text())
    assert {step["outcome"] for step in found["steps"]} == {"not run"} and len(found["steps"]) > 10
    assert ended.stdout.splitlines()[-1] == f"0 of {len(found['steps'])} run"
    assert "no GPU" in ended.stdout and "passed" not in ended.stdout
    assert not (out / "last.json").exists()
    assert sorted(path.name for path in out.iterdir()) == ["log.txt", "results.json"]


# A PyTorch that finds a GPU; gpu_probe.py and what it imports are left out of the pack, and say so.
TORCH = """
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
"""
PROBE = """
import json, os
print("@fact", json.dumps({"device": os.environ.get("GPU", "A GPU"), "driver": "1.2"}))
print("python path", os.environ["PYTHONPATH"])
"""


@pytest.fixture
def with_gpu(pack, tmp_path):
    """Runs the pack's steps where a GPU seems to be: the probe passes, and figures that are made up for it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "torch.py").write_text(TORCH)
    (pack / "tests/gpu/gpu_probe.py").write_text(PROBE)
    figures = (
        f"import json, sys\nprint('@figure', json.dumps({{**{FIGURE!r}, 'name': sys.argv[1], 'met': True}}))\n"
        "sys.exit(1 if sys.argv[1] == 'fp32' else 0)\n"
    )
    (pack / "tests/gpu/gpu_figures.py").write_text(figures)
    story = {"name": "story_pause", "value": 0.002, "unit": "s", "of": "0.05 s by CUDA IPC", "ratio": 0.04}
    (pack / "tests/gpu/gpu_story.py").write_text(f"import json\nprint('@figure', json.dumps({story!r}))\n")
    (pack / "sources.json").write_text(json.dumps({**ABOUT, "digest": gpu_last.digest_of(ABOUT["sources"])}))

    def runs(*only: str, **environment: str) -> "tuple[subprocess.CompletedProcess, dict]":
        arguments = [argument for name in only for argument in ("--only", name)]
        command = [pack / "tests/gpu/run.sh", "--out", tmp_path / "out", *arguments]
        environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(site), **environment}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        last = tmp_path / "out/last.json"
        return ended, json.loads(last.read_text()) if last.exists() else {}

    return runs


def test_runs_of_some_steps_each_make_one_record(with_gpu, tmp_path):
    ended, last = with_gpu("figures: publish")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (last["passed"], last["failed"]) == (["probe", "figures: publish"], [])
    assert last["not_run"]["figures: fp32"] == gpu_last.NOT_ASKED
    assert [figure["step"] for figure in last["figures"]] == ["figures: publish"]
    ended, last = with_gpu("figures: fp32", "figures: pause")
    assert ended.returncode == 1
    assert (last["passed"], last["failed"]) == (["figures: publish", "probe", "figures: pause"], ["figures: fp32"])
    assert [figure["step"] for figure in last["figures"]] == ["figures: publish", "figures: fp32", "figures: pause"]
    assert "figures: fp32" not in last["not_run"] and last["finished"]
    _, last = with_gpu("figures: *")
    assert len(last["figures"]) == len(ALL_FIGURES)
    assert gpu_last.read(tmp_path / "out/last.json") == last


def test_the_story_is_a_step_whose_figures_need_no_goal(with_gpu):
    ended, last = with_gpu("story")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert last["passed"] == ["probe", "story"] and [figure["step"] for figure in last["figures"]] == ["story"]
    assert "| `story_pause` | 0.002 s | 0.05 s by CUDA IPC | 0.04 |  |" in gpu_last.table(last)
    assert re.search(r"^story_pause +0.002 s, 0.04 of 0.05 s by CUDA IPC$", ended.stdout, re.MULTILINE)


def test_a_record_of_another_gpu_or_of_other_sources_is_not_gone_on_with(with_gpu, pack, tmp_path):
    with_gpu("figures: publish")
    _, last = with_gpu("figures: pause", GPU="Another GPU")
    assert last["device"] == "Another GPU" and last["passed"] == ["probe", "figures: pause"]
    sources = {"b.cu": "2"}
    changed = {"digest": gpu_last.digest_of(sources), "commit": "c", "sources": sources}
    (pack / "sources.json").write_text(json.dumps(changed))
    _, last = with_gpu("figures: publish")
    assert last["digest"] == changed["digest"] and last["passed"] == ["probe", "figures: publish"]


def test_a_step_that_is_not_there_is_bad_usage(with_gpu):
    ended, last = with_gpu("figures: nothing")
    assert ended.returncode == 64 and "no step is called 'figures: nothing'" in ended.stderr and last == {}


def test_steps_find_what_the_callers_python_path_names_behind_their_own(with_gpu, pack, tmp_path):
    with_gpu("probe")
    log = (tmp_path / "out/log.txt").read_text()
    path = next(line for line in log.splitlines() if line.startswith("python path ")).split()[-1].split(":")
    assert path[0] == str(pack / "python") and path[-1] == str(tmp_path / "site")


def test_without_pytest_what_needs_it_is_not_run(with_gpu, pack):
    steps = pack / "tests/gpu/gpu_steps.py"
    steps.write_text(steps.read_text().replace('find_spec("pytest")', 'find_spec("no_pytest")'))
    ended, last = with_gpu()
    assert "has no pytest" in last["not_run"]["test_gpu_publish"] and "probe" in last["passed"]


def test_an_interpreter_without_pytorch_runs_nothing(pack, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no PyTorch here')")
    ended = without_gpu(pack, "--out", str(tmp_path / "out"), path=tmp_path)
    assert ended.returncode == NOT_RUN and "no GPU: " in ended.stdout and "no PyTorch here" in ended.stdout


def test_where_nothing_is_packed_it_says_what_to_do(tmp_path):
    script = tmp_path / "tests/gpu/run.sh"
    script.parent.mkdir(parents=True)
    script.write_bytes((HERE / "run.sh").read_bytes())
    ended = subprocess.run(["bash", script], capture_output=True, text=True)
    assert ended.returncode == 69 and "tests/gpu/pack.sh" in ended.stderr
