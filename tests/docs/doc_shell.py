"""As much of a shell as the docs use: `voidrl` runs in this process, other programs are checked for form."""

import contextlib
import io
import os
import re
import runpy
import shlex
import signal
import tomllib
from pathlib import Path

from doc_pages import ROOT

from voidrl.cli import main as cli
from voidrl.training import collecting

INTERRUPT = "^C"
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
SHOWN_ONLY = {"source", "git", "cd", "apt-get", "sudo", "tensorboard", "sphinx-build"}
READERS = {"head", "tail", "less", "tee"}  # behind a pipe
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


class Shell:
    """Runs blocks of one page, in order, in the current folder. `RUN` is the newest run folder in it."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.variables = monkeypatch, {}

    def run(self, text):
        lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line != INTERRUPT:
                self._line(line, interrupted=following == INTERRUPT)

    def _line(self, line, *, interrupted):
        words = self._words(line)
        command, target = [], None
        rest = iter([*words, ";"])
        for word in rest:
            if word == ">":
                target = next(rest)
            elif word in (";", "&&", "&", "|"):
                if command:
                    self._command(command, target, interrupted)
                command, target = [], None
                if word == "|":
                    reader = next(rest)
                    assert reader in READERS, f"{line!r}: {reader!r} is not known to read from a pipe"
                    break
            else:
                command.append(word)

    def _words(self, line):
        def value(match):
            return self.variables[match[1]] if match[1] else match[0]

        lexer = shlex.shlex(
            re.sub(r"'[^']*'|\$\{?(\w+)\}?", value, line), posix=True, punctuation_chars=";&|>"
        )
        lexer.whitespace_split, lexer.commenters = True, "#"
        return list(lexer)

    def _command(self, words, target, interrupted):
        given = {}
        while words and (match := ASSIGNMENT.fullmatch(words[0])):
            given[match[1]], words = match[2], words[1:]
        if not words:
            self.variables.update(given)
            return
        program, *rest = words
        check = getattr(self, f"_check_{program}", None)
        if check is not None:
            check(rest)
            return
        if program in SHOWN_ONLY:
            return
        assert program in ("voidrl", "python"), f"`{program}` is no program that the docs may use"
        with contextlib.ExitStack() as stack:
            patch = stack.enter_context(self.monkeypatch.context())
            for name, value in given.items():
                patch.setenv(name, value)
            out = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            if program == "python":
                self._python(rest)
            else:
                self._voidrl([self._filled(word) for word in rest if word != "…"], patch, interrupted)
        if target is not None:
            Path(self._filled(target)).write_text(out.getvalue(), "utf-8")

    def _voidrl(self, words, patch, interrupted):
        if interrupted:
            record, calls = collecting.Collector.record, []

            def and_press_ctrl_c(*args):
                record(*args)
                calls.append(args)
                if len(calls) == 30:
                    signal.raise_signal(signal.SIGINT)

            patch.setattr(collecting.Collector, "record", and_press_ctrl_c)
        try:
            code = cli.main(words)
        except SystemExit as stop:  # --help
            code = stop.code or 0
        # The doctor ends with 1 where something is wrong with the machine, which is not the page's fault.
        expected = {cli.INTERRUPTED} if interrupted else {0, 1} if words[:1] == ["doctor"] else {0}
        assert code in expected, f"`voidrl {shlex.join(words)}` ended with {code}"

    def _python(self, words):
        script = Path(words[0])
        if script.is_file():
            runpy.run_path(str(script), run_name="__main__")
        else:  # one of the repository, which has a test of its own
            assert (ROOT / script).is_file(), f"there is no {script}"

    def _check_make(self, words):
        targets = [word for word in words if not ASSIGNMENT.fullmatch(word)]
        assert set(targets) <= TARGETS, f"make has no target {set(targets) - TARGETS}"

    def _check_pip(self, words):
        assert words[0] == "install"
        for word in words[1:]:
            match = re.fullmatch(r"[\w./-]+?(?:\[([\w,]+)\])?", word)
            assert match, f"`pip install {word}` has another form"
            assert set((match[1] or "all").split(",")) <= EXTRAS.keys(), f"{word} names an unknown extra"

    def _filled(self, word):
        if not re.match(r"RUN\b", word):
            return word
        runs = sorted(Path().rglob("environment.json"), key=os.path.getmtime)
        assert runs, f"{word}: there is no run yet"
        return word.replace("RUN", str(runs[-1].parent), 1)
