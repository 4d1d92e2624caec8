"""A program: loads checkpoints as ranks of vLLM do, and saves the parameters they end up with.

A request is a line of JSON on standard input: {"checkpoint": DIRECTORY, "tensor": [SIZE, RANK], "data": [SIZE, RANK],
"expert_parallel": BOOL, "output": FILE}. Its answer, a line on standard output, is {} or {"error": TEXT}.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from vllm_model import Model, Rank


def handle(request: "dict[str, Any]") -> None:
    """Saves the parameters that vLLM's loader fills, under vLLM's names."""
    checkpoint = Path(request["checkpoint"])
    model = Model(checkpoint, Rank(tuple(request["tensor"]), tuple(request["data"]), request["expert_parallel"]))
    model.load(checkpoint)
    save_file(model.parameters(), request["output"])


def main() -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever vLLM prints
    for line in sys.stdin:
        try:
            handle(json.loads(line))
            answer: "dict[str, str]" = {}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
