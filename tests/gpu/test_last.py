"""What is said of the last run on a GPU, and that documents say no more."""

import json
import re
import subprocess
import sys

import gpu_last
import pytest
from gpu_last import NEVER, NOT_ASKED, ROOT, digest_of, merged, read, record, sources, standing, table

FIGURE = {"name": "rate", "value": 5.0, "unit": "GB/s", "of": "9 GB/s", "ratio": 0.55, "goal": ">= 0.9", "met": False}
STEPS = [
    {"step": "probe", "outcome": "passed", "why": "", "figures": [FIGURE]},
    {"step": "two", "outcome": "failed", "why": "died", "figures": []},
    {"step": "three", "outcome": "not run", "why": "needs 2 GPUs", "figures": []},
]


SOURCES = {"kernels/a.cu": "1", "b.cc": "2"}
RUN = {
    "device": "A GPU",
    "driver": "1.2",
    "finished": True,
    "commit": "c",
    "digest": digest_of(SOURCES),
    "sources": SOURCES,
}


def last(steps=STEPS, date="2030-01-02", **changes) -> dict:
    return {**record({**RUN, "steps": steps}, date), **changes}


@pytest.fixture
def checkout(tmp_path):
    """A git repository with a few sources."""
    files = {
        "kernels/compare.cu": "__global__ void Compare() {}",
        "export_plugin/engine.cc": "#include <cuda_runtime_api.h>",
        "export_plugin/engine_test.cc": "#include <cuda_runtime_api.h>",
        "export_plugin/cuda_engine_test.cc": "#include <cuda_runtime_api.h>",
        "python/lockstep/memory.py": "torch.cuda.synchronize()",
        "python/lockstep/other.py": "1",
        "export_plugin/exporter/exporter.cc": "engine.Run()",
        "docs/gpus.md": "torch.cuda.synchronize()",
        "tests/gpu/test_gpu_publish.py": "",
        "tests/gpu/gpu_models.py": "",
        "tests/gpu/gpu_last.py": "",
        "tests/gpu/test_runner.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def test_sources_are_what_speaks_to_a_gpu_and_what_runs_on_one(checkout):
    assert set(sources(checkout)) == {
        "export_plugin/cuda_engine_test.cc",
        "export_plugin/engine.cc",
        "export_plugin/exporter/exporter.cc",
        "kernels/compare.cu",
        "python/lockstep/memory.py",
        "tests/gpu/gpu_models.py",
        "tests/gpu/test_gpu_publish.py",
    }


def test_the_digest_changes_with_a_text_a_name_and_a_new_file_before_it_is_added(checkout):
    seen = {digest_of(sources(checkout))}

    def changed() -> bool:
        now = digest_of(sources(checkout))
        new = now not in seen
        seen.add(now)
        return new

    assert not changed()
    (checkout / "kernels/compare.cu").write_text("__global__ void Compare() { }")
    assert changed()
    (checkout / "kernels/compare.cu").rename(checkout / "kernels/other.cu")
    assert changed()
    (checkout / "kernels/new.cu").write_text("__global__ void New() {}")
    assert changed()
    (checkout / "python/lockstep/other.py").write_text("2")
    assert not changed()


def test_no_run_a_run_of_other_sources_and_one_of_these_are_told_apart():
    now = last()["sources"]
    assert "has never run on a GPU" in standing(None, now)
    same = standing(last(), now)
    assert "is what last ran on A GPU on 2030-01-02: 1 steps passed, 1 failed, 1 not run" in same
    other = standing(last(), {**now, "b.cc": "3", "kernels/new.cu": "4"})
    assert other.startswith("GPU code has changed since it last ran") and other.endswith("b.cc, kernels/new.cu")
    assert "kernels/a.cu" in standing(last(), {"b.cc": "2"})  # one that is gone
    assert "cut off" in standing(last(finished=False), now)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": ""}, "no run on a GPU"),
        ({"digest": "0" * 64}, "do not edit it"),
        ({"sources": {"b.cc": "5"}}, "do not edit it"),
        ({"figures": None}, "has no figures"),
    ],
)
def test_a_record_that_no_run_has_made_is_refused(tmp_path, change, said):
    content = {key: value for key, value in last(**change).items() if value is not None}
    (tmp_path / "last.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "last.json")


def test_a_record_is_read_as_it_was_written_and_none_is_none(tmp_path):
    assert read(tmp_path / "last.json") is None
    (tmp_path / "last.json").write_text(json.dumps(last()))
    assert read(tmp_path / "last.json") == last()


def test_records_of_two_runs_make_one_and_a_step_is_as_it_ran_last():
    again = [
        {"step": "probe", "outcome": "passed", "why": "", "figures": [{**FIGURE, "value": 6.0}]},
        {"step": "two", "outcome": "passed", "why": "", "figures": []},
        {"step": "three", "outcome": "not run", "why": NOT_ASKED, "figures": []},
    ]
    found, later = last(), last(again, "2030-01-03")
    both = merged(found, later)
    assert (both["passed"], both["failed"], both["date"]) == (["probe", "two"], [], "2030-01-03")
    assert [figure["value"] for figure in both["figures"]] == [6.0]
    assert both["not_run"] == {"three": "needs 2 GPUs"}
    assert merged(later, found)["failed"] == ["two"]
    left_out = last(not_run={"three": NOT_ASKED})
    assert merged(left_out, found)["not_run"] == {"three": "needs 2 GPUs"}
    for key in ("digest", "device", "driver"):
        assert merged(found, {**later, key: "another"}) is None


def test_records_are_merged_by_a_command_that_refuses_what_is_not_of_one_gpu(tmp_path):
    paths = [tmp_path / name for name in ("one.json", "two.json")]
    command = [sys.executable, ROOT / "tests/gpu/gpu_last.py", "--merge", *paths]
    for path in paths:
        path.write_text(json.dumps(last()))
    printed = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(printed.stdout) == last()
    paths[1].write_text(json.dumps(last(device="Another GPU")))
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1 and "two.json is of other sources, or of another GPU" in refused.stderr


def test_a_table_shows_each_figure_and_which_goal_was_missed():
    assert "| `rate` | 5 GB/s | 9 GB/s | 0.55 | >= 0.9, missed |" in table(last())
    assert table(None) == NEVER


def test_documents_have_the_figures_of_the_last_run_and_no_others():
    """docs/performance.md says what gpu_last.py --table prints. A committed last.json that is none fails here, too."""
    document = (ROOT / "docs/performance.md").read_text()
    section = re.search(r"^## On a GPU\n\n(.*?)(?=^## |\Z)", document, re.MULTILINE | re.DOTALL)
    assert section, 'docs/performance.md has no section "On a GPU"'
    assert section[1].strip().endswith(table(read()).strip()), "python3 tests/gpu/gpu_last.py --table"


def test_every_source_of_the_project_that_may_run_on_a_gpu_is_there():
    found = sources()
    assert set(gpu_last.ALSO) <= found.keys()
    assert any(name.endswith(".cu") for name in found) and "tests/gpu/gpu_models.py" in found
