"""What is made from the options of programs: what bash offers after a word, scripts of other shells, manual pages."""

import re
import subprocess

import pytest
from harness import LOCKSTEPCTL, RAAS_RECEIVER, TRAINER_AGENT


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


@pytest.mark.parametrize("program", [TRAINER_AGENT, RAAS_RECEIVER, LOCKSTEPCTL], ids=lambda path: path.name)
def test_a_manual_page_has_every_option_and_command_that_help_has(program):
    def said(*words: str) -> str:
        return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout

    def options(text: str) -> "set[str]":
        return set(re.findall(r"^ +(?:-h,)?(--[a-z-]+)", text, re.MULTILINE))

    page = said("--man")
    formatted = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-cbou"], input=page, capture_output=True, text=True
    )
    assert (formatted.returncode, formatted.stderr) == (0, "")
    help_text = said("--help")
    commands = re.findall(r"^  ([a-z]+) ", help_text.partition("Subcommands:")[2], re.MULTILINE)
    assert re.findall(r"^   ([a-z]+)$", formatted.stdout, re.MULTILINE) == commands
    assert bool(commands) == (program == LOCKSTEPCTL)
    wanted = options(help_text).union(*(options(said(command, "--help")) for command in commands))
    assert len(wanted) > 15 and wanted <= options(formatted.stdout)
    assert "\\" not in formatted.stdout
