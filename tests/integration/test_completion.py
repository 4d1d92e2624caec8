"""lockstepctl completion: what bash offers after a word, and scripts of the other shells."""

import subprocess

import pytest
from harness import LOCKSTEPCTL


def offered(*words: str) -> "set[str]":
    """What bash offers for the last of these words, behind lockstepctl."""
    listed = " ".join(f"'{word}'" for word in ("lockstepctl", *words))
    script = f"source <({LOCKSTEPCTL} completion bash); COMP_WORDS=({listed}); COMP_CWORD={len(words)}; _lockstepctl"
    ran = subprocess.run(
        ["bash", "-c", script + '; printf "%s\\n" "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    return set(ran.stdout.split())


def test_commands_and_options_are_offered_where_they_may_stand(tmp_path):
    assert {"status", "rollback", "log", "doctor", "--agent", "--tls-cert"} <= offered("")
    assert offered("ver") == {"versions", "verify"}
    assert {"ls", "verify", "fetch", "prune"} <= offered("log", "") and "status" not in offered("log", "")
    assert {"--keys", "--version", "--out", "--json"} <= offered("--quiet", "log", "fetch", "--")
    assert offered("rollback", "--n") == {"--not"}
    (tmp_path / "own.crt").write_text("")
    assert offered("status", "--tls-cert", str(tmp_path / "o")) == {str(tmp_path / "own.crt")}


@pytest.mark.parametrize("shell, line", [("zsh", "bashcompinit"), ("fish", "complete -c lockstepctl -l agent -r")])
def test_other_shells_have_scripts_too(shell, line):
    script = subprocess.run([LOCKSTEPCTL, "completion", shell], capture_output=True, text=True, check=True).stdout
    assert line in script and "rollback" in script


def test_a_shell_that_is_none_is_refused():
    refused = subprocess.run([LOCKSTEPCTL, "completion", "csh"], capture_output=True, text=True)
    assert refused.returncode == 64 and "bash, zsh and fish, not csh" in refused.stderr
