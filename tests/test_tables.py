"""Tables fit any terminal, and whole lines go into pipes."""

import io

import pytest
from pseudo_terminals import PseudoTerminal, widest

from voidrl.system.terminal.tables import described, is_terminal, print_table, width_of, wrap_text

COLUMNS = ("method", "seeds", "score", "about")
ROWS = [
    ("apt", 3, 1056.25, "the entropy of the states visited, from distances [in brackets] to others"),
    ("random", 10, -2.0, "uniform random actions"),
    ("new", None, None, None),
]
pytestmark = pytest.mark.usefixtures("plain_terminal")


def shown(columns, **options):
    with PseudoTerminal(columns) as terminal:
        print_table(COLUMNS, ROWS, file=terminal.stream, **options)
        text = terminal.text()
        return text, terminal.lines()


def test_in_a_pipe_each_row_is_one_whole_plain_line(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    print_table(COLUMNS, ROWS, title="Results", file=stream)
    assert stream.getvalue().splitlines() == [
        "Results",
        "method  seeds    score  about",
        "apt         3  1056.25  the entropy of the states visited, from distances [in brackets] to others",
        "random     10       -2  uniform random actions",
        "new",
    ]


def test_a_job_of_ci_on_a_terminal_writes_a_log(monkeypatch):
    monkeypatch.setenv("CI", "true")
    text, lines = shown(40)
    assert "\x1b" not in text
    assert len(lines) == 4
    monkeypatch.setenv("CI", "false")
    assert len(shown(60)[1]) > 4


@pytest.mark.parametrize("columns", [40, 200])
def test_on_a_terminal_no_line_is_wider_and_no_word_is_lost(columns):
    text, lines = shown(columns, title="Results of runs")
    assert "\x1b[1m" in text
    assert widest(lines) <= columns
    words = "".join("".join(lines).split())
    for part in (*COLUMNS[3:] * (columns >= 60), "apt", "1056.25", "[inbrackets]toothers", "uniform"):
        assert part in words


def test_one_line_stays_one_line_whatever_is_in_a_cell():
    stream = io.StringIO()
    print_table(("name", "title"), [("a", "two\nlines and \x1b[31mred")], file=stream)
    assert stream.getvalue().splitlines() == ["name  title", "a     two lines and  [31mred"]


def test_sentences_are_broken_between_words_on_terminals_alone():
    sentence = "return   1.500 ± 0.250 over 10 episodes, 3 of them different\nlength   4.0"
    with PseudoTerminal(40) as terminal:
        assert wrap_text(sentence, indent=9, file=terminal.stream).split("\n") == [
            "return   1.500 ± 0.250 over 10 episodes,",
            "         3 of them different",
            "length   4.0",
        ]
        path = "a/folder/whose/name/is/longer/than/the/terminal/is/wide"
        assert path in wrap_text(f"see {path}", file=terminal.stream)
        rows = {"--out DIR": "the run folder; by default a new one", "--overwrite": "replace the run"}
        assert described(rows, file=terminal.stream).split("\n") == [
            "  --out DIR    the run folder; by",
            "               default a new one",
            "  --overwrite  replace the run",
        ]
    assert wrap_text(sentence, file=io.StringIO()) == sentence
    assert described(rows, file=io.StringIO()).split("\n")[0].endswith("by default a new one")


def test_the_width_is_the_terminals_own_unless_it_is_given_or_unknown(monkeypatch):
    with PseudoTerminal(57) as terminal:
        assert width_of(terminal.stream) == 57
        terminal.resize(33)
        assert width_of(terminal.stream) == 33
        terminal.resize(0)
        assert width_of(terminal.stream) == 80
        monkeypatch.setenv("COLUMNS", "44")
        assert width_of(terminal.stream) == 44
        monkeypatch.setenv("COLUMNS", "0")
        assert width_of(terminal.stream) == 80
        assert is_terminal(terminal.stream)
    assert width_of(io.StringIO()) == 80


def test_no_color_is_kept_to(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in shown(60)[0]
