"""As much of a shell as the docs use: `voidrl` and `python` run in this process, others are not run."""

import contextlib
import io
import os
import re
import runpy
import shlex
import signal
from pathlib import Path

from doc_pages import ROOT

from voidrl.cli import main as cli
from voidrl.training import collecting

INTERRUPT = "^C"
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
SHOWN_ONLY = {"source", "git", "cd", "apt-get", "sudo", "tensorboard", "sphinx-build", "pip", "make"}


class Shell:
    """Runs blocks of one page, in order, in the current folder. `RUN` is the newest run folder in it."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.variables = monkeypatch, {}

    def run(self, text):
        lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line == INTERRUPT:
                continue
            command = []
            for word in [*self._words(line), ";"]:
                if word not in (";", "&&", "&", "|"):
                    command.append(word)
                elif command:
                    self._command(command, interrupted=following == INTERRUPT)
                    command = []
                if word == "|":  # to a reader
                    break

    def _words(self, line):
        def value(match):
            return self.variables[match[1]] if match[1] else match[0]

        filled = re.sub(r"'[^']*'|\$\{?(\w+)\}?", value, line)
        lexer = shlex.shlex(filled, posix=True, punctuation_chars=";&|>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        return list(lexer)

    def _command(self, words, *, interrupted):
        given = {}
        while words and (match := ASSIGNMENT.fullmatch(words[0])):
            given[match[1]], words = match[2], words[1:]
        if not words:
            self.variables.update(given)
            return
        program, *rest = words
        if program in SHOWN_ONLY:
            return
        target = None
        if ">" in rest:
            rest, target = rest[: rest.index(">")], rest[rest.index(">") + 1]
        assert program in ("voidrl", "python"), f"`{program}` is no program that the docs may use"
        with self.monkeypatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
            for name, value in given.items():
                patch.setenv(name, value)
            if program == "voidrl":
                self._voidrl([self._filled(word) for word in rest if word != "…"], patch, interrupted)
            elif Path(rest[0]).is_file():
                runpy.run_path(rest[0], run_name="__main__")
            else:  # one of the repository, which has a test of its own
                assert (ROOT / rest[0]).is_file(), f"there is no {rest[0]}"
        if target is not None:
            Path(target).write_text(out.getvalue(), "utf-8")

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

    def _filled(self, word):
        if not re.match(r"RUN\b", word):
            return word
        runs = sorted(Path().rglob("environment.json"), key=os.path.getmtime)
        assert runs, f"{word}: there is no run yet"
        return word.replace("RUN", str(runs[-1].parent), 1)
