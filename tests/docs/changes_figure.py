"""Draws docs/figures/changes.svg: a tiny mixture of experts is trained, and lockstepctl says what each version changed.

python tests/docs/changes_figure.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / part) for part in ("python", "tests/engines", "tests/integration", "tests/layouts", "tests")]

from harness import MODEL, Cluster  # noqa: E402
from tiny_trainer import Trainer  # noqa: E402

VERSIONS = 13


def main() -> None:
    with Cluster() as cluster:
        agent = cluster.agent()
        directory, rates = cluster.directory / "checkpoints", (1e-7, 1e-6, 1e-5)
        trainer = Trainer(
            "qwen3_moe", directory, agent.socket, MODEL, learning_rates=rates, num_hidden_layers=6, num_experts=8
        )
        for version in range(1, VERSIONS + 1):
            if version > 1:
                trainer.step()
            trainer.exporter.publish(version=version).stats()
        drawn = agent.ctl("diff", "1", str(VERSIONS), "--by", "version", "--svg", ROOT / "docs/figures/changes.svg")
        print(drawn.stdout + drawn.stderr)
        trainer.close()


if __name__ == "__main__":
    main()
