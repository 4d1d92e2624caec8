"""Listings of the pages, run as they stand there, in the order of their page, with the daemons where they are by default.

Each story has a network, /run, /mnt, /dev/shm and names of hosts of its own. A listing uses names that its page leaves
open, such as `model`: the code before it gives them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LOCKSTEPCTL, RAAS_RECEIVER, ROOT, TRAINER_AGENT

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
HOSTS = """127.0.0.1 localhost
10.20.0.1 trainer trainer-0 trainer-0.example.org
10.20.0.2 infer-0
10.20.0.3 infer-1 infer-3
"""
WORLD = """
set -eu
mount -t tmpfs none /run; mount -t tmpfs none /mnt; mount -t tmpfs none /dev/shm
mount --bind hosts /etc/hosts
ip link set lo up
for host in 1 2 3; do ip addr add 10.20.0.$host/32 dev lo; done
until_there() { for _ in $(seq 400); do test -e "$1" && return; sleep 0.05; done; echo "$1 is not there"; exit 1; }
in_sight="--allow-insecure-network 10.20.0.0/16"
options=""
"""
AGENT = """
trainer_agent --listen trainer:7700 $in_sight &
until_there /run/trainer-agent/control.sock
"""
RECEIVER = """
raas_receiver --model actor --listen infer-0:7710 $in_sight $options &
until_there /run/raas-receiver/control.sock
"""
SECOND = """
raas_receiver --model actor --source trainer:7700 --name second --root /mnt/second --control-socket /mnt/second/control.sock \
  --listen infer-1:7710 $in_sight &
until_there /mnt/second/control.sock
"""
TRAINER = """
import types
import numpy, torch
from causal_models import small_model

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
model = small_model("qwen3")
steps, step = 2, 3

def train_one_step(model):
    with torch.no_grad():
        next(model.parameters()).add_(1)
"""


def listing(page: str, number: int) -> str:
    """The page's block of that number, as it stands there."""
    indent, _, text = BLOCK.findall((ROOT / page).read_text())[number]
    return re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def python(page: str, *parts: "int | str") -> str:
    """A program of listings, and of code between them, as a piece of a script for the shell."""
    program = "\n".join(listing(page, part) if isinstance(part, int) else part for part in parts)
    return f"{sys.executable} - <<'END'\n{program}\nEND\n"


def shell(page: str, *numbers: int) -> str:
    return "".join(listing(page, number) for number in numbers)


def run_alone(
    script: str, directory: Path, *, programs: "tuple[Path, ...]" = (), timeout_s: float = 240, **variables: object
) -> "subprocess.CompletedProcess[str]":
    """Runs a script of the shell in namespaces of its own, where it is root; all that it started ends with it."""
    found = [*programs, *(Path(program).parent for program in (LOCKSTEPCTL, TRAINER_AGENT, RAAS_RECEIVER))]
    modules = [ROOT / "python", ROOT / "tests/layouts", ROOT / "tests/engines"]
    variables |= {"OMP_NUM_THREADS": 1, "PYTHONPATH": ":".join(map(str, modules))}
    path = ":".join([*map(str, found), os.environ["PATH"], "/usr/sbin", "/sbin"])
    alone = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.run(
        [*alone, *([] if os.geteuid() == 0 else ["--map-root-user"]), "bash", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": path, **{name: str(value) for name, value in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture
def tell(tmp_path):
    """Runs a story, and answers what it printed."""
    (tmp_path / "hosts").write_text(HOSTS)

    def run(*pieces: str) -> str:
        ran = run_alone("\n".join([WORLD, *pieces]), tmp_path)
        assert ran.returncode == 0, ran.stdout[-6000:]
        return ran.stdout

    return run


def test_the_readme_publishes_reads_and_rolls_back(tell):
    more = "publisher.publish(41, version=41).wait(timeout=60); publisher.publish(42, version=42).wait(timeout=60)"
    back = "assert lockstep.control.Receiver('infer-3:7710').status().models[0].held.version == 41"
    second = SECOND.replace("infer-1", "infer-3")
    tell(AGENT, RECEIVER, second, python("python/README.md", TRAINER, 1, 2, more, 6, back))


def test_the_readme_starts_daemons_and_passes_a_ring(tell):
    given = "import lockstep, torch; model = torch.nn.Linear(8, 4, bias=False)"
    trained = "weights = dict(model.state_dict()); step, version = 10, 2"
    _, trainer, engine = listing("python/README.md", 8).split("\n\n")
    took = "assert served.version == 2"
    page = "python/README.md"
    tell(
        "mkdir /run/trainer",
        "{",
        python(page, given, trained, 7, trainer),
        "} & {",
        python(page, given, engine, took),
        "}; wait $!",
    )


def test_how_trainers_publish(tell):
    end = "assert publication; publisher.close()"
    bridge = "model_chunks, bridge = [model], types.SimpleNamespace(export_weights=lambda chunks: chunks[0].state_dict().items())"
    arrays = "embed, head = torch.zeros(4, 8), numpy.ones((8, 4), numpy.float16)"
    checkpoint = """
model.save_pretrained("checkpoint")
checkpoint = "checkpoint"
"""
    tell(
        AGENT,
        RECEIVER,
        python("docs/howto/trainers.md", TRAINER, 0, 6, end, bridge, 1, 6, end, arrays, 2, 6, end, checkpoint, 3),
    )


def test_two_writers_in_place(tell):
    given = """
import os
import lockstep, numpy
rank, number, step = int(os.environ["RANK"]), 1, 10
layout = {"first": numpy.zeros(64, "uint8"), "second": numpy.zeros(128, "uint8")}
data = {"first": bytes(range(64)), "second": bytes(range(128))}
is_mine = lambda name: (name == "second") == (rank == 1)
"""
    writer = python("docs/howto/trainers.md", given, 5, "publisher.wait_served(step, timeout=60)")
    tell(AGENT, RECEIVER, "{ export RANK=0", writer, "} & { export RANK=1", writer, "}; wait $!")


def test_a_module_follows_in_place(tell):
    given = """
import torch
from causal_models import small_model
import lockstep
module = model = small_model("qwen3")
prompt = torch.tensor([[1, 2, 3]])
publisher = lockstep.Publisher.from_tensors({name: tensor + 1 for name, tensor in model.state_dict().items()}, model="actor")
publisher.publish(1)
"""
    end = "assert served.label == '1'; follower.close()"
    program = python("docs/howto/in-place.md", given, 2, end, listing("python/README.md", 3), end)
    tell(AGENT, "options='--engine-load in-place'", RECEIVER, program)


def test_adapters_and_attachments(tell):
    given = """
import peft
from causal_models import small_model
peft_model = peft.get_peft_model(small_model("qwen3"), peft.LoraConfig(target_modules=["q_proj"]))
step = 1
"""
    attached = "import torch\ntensors = {'head': torch.ones(4)}; text = '{}'"
    tell(AGENT, python("docs/howto/adapters.md", given, 0, attached, 2, "publisher.publish(1, tensors=tensors)"))


def test_an_engine_that_follows_a_training_on_its_host_and_the_next_run(tell):
    checkpoint = "from causal_models import small_model\nsmall_model('qwen3').save_pretrained('/mnt/actor')"
    next_run = """
import lockstep, torch
from causal_models import small_model
with lockstep.Publisher.from_module(small_model("qwen3"), model="actor", dtype=torch.bfloat16) as publisher:
    publisher.publish("of a new run").wait(engines=1, timeout=60)
"""
    page = "docs/setups.md"
    programs = {"train.py": listing(page, 1), "serve.py": listing(page, 7)}
    files = "".join(f"cat > {name} <<'END'\n{text}END\n" for name, text in programs.items())
    tell(
        f"PATH={Path(sys.executable).parent}:$PATH; echo trainer > /proc/sys/kernel/hostname",
        python(page, checkpoint),
        files,
        shell(page, 6).replace("/models/actor", "/mnt/actor"),
        "until grep 'step 3:' serve.log; do sleep 0.1; done",
        python(page, next_run),
        "until grep 'step of a new run:' serve.log; do sleep 0.1; done",
    )


def test_daemons_of_a_ray_job(tell):
    """Ray itself is only asked for the host's address here; tests/frameworks.sh has it whole."""
    given = """
import sys, types
import numpy
sys.modules["ray"] = types.SimpleNamespace(util=types.SimpleNamespace(get_node_ip_address=lambda: "10.20.0.1"))
weights = {"head": numpy.ones(4)}
"""
    between = """
publisher.publish(1)
agent_grpc = agent.grpc
loaded = []
engine = types.SimpleNamespace(load=loaded.append)
"""
    tell(
        python(
            "docs/howto/ray.md",
            given,
            0,
            between,
            1,
            "assert loaded; receiver.stop()",
            2,
            "assert receiver.engine_socket",
        )
    )


def test_daemons_of_a_slurm_job(tell):
    given = "import os; os.environ['LOCKSTEP_RUNTIME_DIR'] = '/mnt/job'; trainer_node = 'trainer'"
    end = "publisher.publish(1); lockstep.wait_for(receiver.replica('actor'), timeout=60)"
    tell(python("docs/howto/slurm.md", TRAINER, given, 0, 1, end))


def test_a_log_in_a_directory(tell):
    given = "import lockstep, numpy\nweights = {'head': numpy.ones(4)}\npublisher = lockstep.Publisher.from_tensors(weights, model='actor')"
    train = "for step in range(1, 8): publisher.publish(step)\npublisher.wait_served(7, timeout=60)"
    archived = "until lockstepctl log ls file:///mnt/weights actor | grep -q ' 7 '; do sleep 0.1; done"
    tell(
        shell("docs/log.md", 4),
        AGENT,
        "mkdir -p /mnt/weights; options='--archive file:///mnt/weights'",
        RECEIVER,
        python("docs/log.md", given, train),
        archived,
        shell("docs/log.md", 2, 7),
        "test -e actor-7/model.safetensors",
    )


def test_what_an_operator_asks(tell):
    published = python(
        "README.md",
        "import lockstep, numpy\nlockstep.Publisher.from_tensors({'head': numpy.ones(4)}, model='actor').publish(1)",
    )
    told = tell(
        AGENT,
        RECEIVER,
        SECOND,
        published,
        "lockstepctl pull",
        shell("docs/howto/runbook.md", 0, 1),
        "test -s trace.json",
        shell("docs/howto/upgrades.md", 0, 2),
        shell("docs/frameworks/areal.md", 2),
    )
    assert "trainer_agent" in told


def test_what_an_operator_asks_with_certificates(tell):
    certificates = f"""
{ROOT}/deploy/tls/make-test-ca.sh certificates trainer=DNS:trainer-0.example.org,URI:spiffe://example.org/ops
cp certificates/trainer/* .
printf '[[allow]]\nname = "spiffe://example.org/ops"\nrole = "operator"\n' > policy.toml
trainer_agent --listen trainer:7700 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt --tls-policy policy.toml &
until_there /run/trainer-agent/control.sock
"""
    tell(certificates, shell("docs/howto/tls.md", 3))
