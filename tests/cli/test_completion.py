"""Completion in the shells themselves: bash and zsh complete the program's command line with
the scripts that it prints."""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import time
import unittest

from cases import BIN, ProgramCase

COMMANDS = set("run plan search verify prove logits sweep compare plugins schedule checkpoints export trace report runs bench "
               "calibrate doctor lua-types description-keys repl completion version".split())
# What is typed -> what must be offered, and what must not.
CASES = [
    ("meshwright ", COMMANDS, {"cell", "--help", "list"}),
    ("meshwright ver", {"verify", "version"}, {"run"}),
    ("meshwright runs ", {"list", "show", "compare", "tail", "export"}, {"run", "verify"}),
    ("meshwright runs export --ta", {"--table"}, {"--csv"}),
    ("meshwright runs export --table ", {"steps", "memory", "communication", "summary"}, {"list"}),
    ("meshwright runs export --table me", {"memory"}, {"steps"}),
    ("meshwright run --", {"--set", "--json", "--quiet", "--processes"}, {"--table", "--attempt"}),
    ("meshwright run quick", {"quickstart.lua"}, {"plan"}),
    ("meshwright run quickstart.lua --json --se", {"--set"}, {"--json"}),
    ("meshwright run quickstart.lua --set opti", {"optimizer=", "optimizer."}, {"steps=", "optimizer.lr="}),
    ("meshwright run quickstart.lua --set optimizer.l", {"optimizer.lr="}, {"optimizer.clip=", "optimizer="}),
    ("meshwright run quickstart.lua --set plan[2].wa", {"plan[2].ways="}, {"plan[1].ways="}),
    ("meshwright plan quickstart.lua --set cluster.network.n", {"cluster.network.nic="}, {"cluster.nodes="}),
    ("meshwright plan quickstart.lua --cluster dgx-h", {"dgx-h100", "dgx-h100-llama3"}, {"selene", "names"}),
    ("meshwright plan quickstart.lua --cluster qui", {"quickstart.lua"}, {"selene"}),
    ("meshwright plan quickstart.lua --stack me", {"megatron-core", "meshwright"}, {"fsdp2", "dgx-h100"}),
    ("meshwright plan quickstart.lua --stack ", {"fsdp2", "vtrain"}, {"ops"}),
    ("meshwright schedule zb", {"zb-h1"}, {"1f1b", "quickstart.lua"}),
    ("meshwright schedule quick", {"quickstart.lua"}, {"zb-h1"}),
    ("meshwright run quickstart.lua --communicator ", {"threads"}, {"quickstart.lua"}),
    ("meshwright plan --plugin-path fol", {"folder/"}, {"quickstart.lua"}),
    ("meshwright completion ", {"bash", "zsh"}, {"run"}),
    ("meshwright report runs.h5 -o quick", {"quickstart.lua"}, set()),
]
BASH = r"""
source <(meshwright completion bash)
compopt() { builtin compopt "$@" 2>/dev/null || true; }  # outside of a completion it is an error
COMP_LINE=$1 COMP_WORDS=($1) COMP_POINT=${#1}
[[ $1 != *' ' ]] || COMP_WORDS+=('')
# As readline cuts words at "=".
words=()
for word in "${COMP_WORDS[@]}"; do
  if [[ $word == --*=* ]]; then words+=("${word%%=*}" = "${word#*=}"); else words+=("$word"); fi
done
COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
_meshwright meshwright "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""
# All that a completion would list is printed at once, and what is typed is then given up.
ZSH = r"""
autoload -Uz compinit && compinit -u -d $HOME/zcompdump
source <(meshwright completion zsh)
zstyle ':completion:*' list-grouped false
zstyle ':completion:*' format ''
LISTMAX=0
bindkey '^I' list-choices
setopt nobeep noautomenu no_list_ambiguous
PS1='ready> '
"""


class Completion(ProgramCase):
    def setUp(self):
        super().setUp()
        (self.folder / "quickstart.lua").write_text("")
        (self.folder / "folder").mkdir()
        (self.folder / "bin").mkdir()
        (self.folder / "bin/meshwright").symlink_to(BIN)
        self.environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder),
                            "XDG_CONFIG_HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder), "TERM": "dumb"}

    def shell(self, name, *arguments):
        if not shutil.which(name):
            self.skipTest(f"{name} is missing: apt-get install {name} (cmake/deps.txt names it)")
        done = subprocess.run([name, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=300)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def offers(self, complete):
        """Each line is completed as it must be; zsh does not list what it puts behind a word."""
        for line, wanted, unwanted in CASES:
            if line.split(" ")[1] in os.environ.get("MESHWRIGHT_LEFT_OUT", "").split():
                continue  # the program has no such command
            with self.subTest(line):
                offered = complete(line)
                bare = {word.rstrip("/=.") for word in offered}
                self.assertLessEqual({word.rstrip("/=.") for word in wanted}, bare)
                self.assertFalse(unwanted & offered)

    def test_commands_are_all(self):
        listed = re.findall(r"(?m)^  ([a-z][a-z-]*) ", self.call("--help").stdout)
        self.assertLessEqual(COMMANDS, set(listed))
        self.assertLessEqual(set(listed), set(self.shell("bash", "-c", BASH, "bash", "meshwright ").split()))

    def test_bash(self):
        self.offers(lambda line: set(self.shell("bash", "-c", BASH, "bash", line).split()))
        self.assertEqual(self.shell("bash", "-c", BASH, "bash", "meshwright runs export --table=su").split(), ["summary"])
        self.assertEqual(self.shell("bash", "-c", BASH, "bash", "meshwright run a.lua -- quick").split(), [])
        (self.folder / "two words.lua").write_text("")
        self.assertEqual(self.shell("bash", "-c", BASH, "bash", "meshwright run two").splitlines(), ["two words.lua"])

    def test_bash_takes_it_for_the_program_and_the_launcher(self):
        said = self.shell("bash", "-c", "source <(meshwright completion bash); complete -p meshwright")
        self.assertEqual(said.strip(), "complete -F _meshwright meshwright")

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("zsh is missing: apt-get install zsh (cmake/deps.txt names it)")
        (self.folder / ".zshrc").write_text(ZSH)
        leader, follower = pty.openpty()
        environment = {**self.environment, "COLUMNS": "2000", "LINES": "1000", "ZDOTDIR": str(self.folder)}
        process = subprocess.Popen(["zsh", "-i"], cwd=self.folder, env=environment, stdin=follower, stdout=follower,
                                   stderr=follower, start_new_session=True)
        os.close(follower)
        self.addCleanup(lambda: (process.kill(), process.wait(), os.close(leader)))
        self.until(leader, "ready> ")

        def complete(line):
            os.write(leader, f"{line}\t".encode())
            time.sleep(0.3)
            os.write(leader, b"\x15print end-$((40 + 2))\n")  # gives the line up
            shown = self.until(leader, "end-42")
            # A line for each word and what is said of it, or several words a line; brackets quoted.
            said = shown.replace(line, " ").replace("\\", "").splitlines()
            return {word for words in said for word in words.split(" -- ")[0].split()}

        self.offers(complete)

    def until(self, file, text):
        shown, end = "", time.monotonic() + 300
        while text not in shown:
            self.assertLess(time.monotonic(), end, shown)
            if select.select([file], [], [], 0.2)[0]:
                shown += os.read(file, 65536).decode(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r", "", shown)

    def test_other_shells(self):
        self.refused(2, "usage.option", "completion", "tcsh")
        self.refused(2, "usage.option", "completion")


if __name__ == "__main__":
    unittest.main(verbosity=2)
