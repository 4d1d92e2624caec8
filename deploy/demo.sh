#!/usr/bin/env bash
# Lockstep, seen working: one trainer_agent and three raas_receivers as processes on this machine, and a trainer that takes
# real Adam steps. Installs what is missing, builds, runs, compares every replica with the trainer's bytes by sha256, cleans up.
#
#   deploy/demo.sh                                     42 M parameters, 12 steps: under a minute once built
#   deploy/demo.sh --shape qwen3-0.6b --steps 8        a real model's shape
#   deploy/demo.sh --checkpoint DIR                    a real model's weights: any HuggingFace directory
#   deploy/demo.sh --kill-agent                        SIGKILLs the agent in mid-run, too
#   deploy/demo.sh --vllm                              GRPO of a tiny model, with samples of a real vLLM server on the CPU
#   deploy/demo.sh --help                              all flags and exit statuses
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

case " $* " in
  *" --no-build "* | *" --help "* | *" -h "*) ;;
  *) "$here/install.sh" --build ;;
esac
# Debian's Python, which has its NumPy.
PYTHONPATH="$here/../python" exec /usr/bin/python3 "$here/demo" "$@"
