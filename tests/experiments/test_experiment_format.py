"""Experiment files: shipped ones can be read, and every mistake in a custom one is a sentence."""

import subprocess
import sys

import numpy as np
import pytest

from voidrl.cli import main as cli
from voidrl.config import registry
from voidrl.envs.suites import published
from voidrl.envs.suites.atari import GAMES_26, human_normalized
from voidrl.errors import ConfigError
from voidrl.experiments.format import EvaluationSpec, read_experiment, shipped
from voidrl.experiments.tasks import GROUPS, make_task, select
from voidrl.presets.presets import PRESETS

LEAST = """
tasks = ["voidrl/PixelMaze-v0"]
[methods.apt]
"""


def read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return read_experiment(str(path))


def test_what_is_shipped():
    assert {*shipped()} == {
        *("table2", "table3", "table4", "table5", "exploration", "figure3", "urlb", "demo", "zoo"),
        *("atari-panel", "outlook", "maze-grid", "adapt"),
    }
    table2 = read_experiment("table2")
    assert [task.env for task in table2.tasks] == [f"atari/{game}" for game in GAMES_26]
    missing = {name: {*read_experiment(name).missing} for name in shipped()}
    assert {name: found for name, found in missing.items() if found} == {"table2": {"simple"}}
    urlb, zoo = read_experiment("urlb"), read_experiment("zoo")
    methods = {*registry.names("method")} - {"positive", "random"}
    assert {arm.method for arm in urlb.arms.values()} - {None} == methods
    assert {arm.method for arm in zoo.arms.values()} == {*methods, "random"}
    assert all(arm.phases == ("pretrain",) and arm.evaluation is None for arm in zoo.arms.values())
    assert (zoo.threads, len(zoo.seeds), zoo.by_phase["pretrain"].steps) == (1, 3, 16_000)
    figure3 = read_experiment("figure3")
    assert sum(task.env.endswith("_sparse") for task in figure3.tasks) == 7
    assert {task.pretrain.env for task in figure3.tasks} == {"dmc/walker", "dmc/cheetah", "dmc/hopper"}


def test_every_printed_row_of_the_papers_tables_has_an_arm_but_simple():
    for name in ("table2", "table3", "table4", "table5", "exploration"):
        without = {row.name for row in published.numbers(name).rows if row.ours is None}
        assert without == ({"random", "human", "simple"} if name == "table2" else set()), name


def test_nothing_that_voidrl_has_is_listed_as_missing():
    kinds = ("method", "representation", "learner")
    known = {*PRESETS, *(name for kind in kinds for name in registry.names(kind))}
    for name in shipped():
        missing = {key.replace("_", "-") for key in read_experiment(name).missing}
        assert not missing & {each.replace("_", "-") for each in known}, name


def test_help_and_lists_of_experiments_import_no_torch():
    code = "import sys; from voidrl.cli.main import main; print(main(['experiment']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
    assert "Table 4: what each part of APT is worth" in done.stdout


def test_every_published_row_that_is_held_against_an_arm_names_one_that_there_is():
    for name in {*published.names()} - {"atari100k"}:
        labels = {arm.label for arm in read_experiment(name).arms.values()}
        for table in published.sources(name):
            held = {row.ours for row in table.rows} - {None}
            assert held
            assert held <= labels, table.name
    # Rows have the names of presets, by which a report finds the runs of an agent.
    for arm in read_experiment("table2").arms.values():
        rows = [table.row(arm.label) for table in published.sources("table2")]
        assert arm.preset is None or {row.name for row in rows if row} <= {arm.preset.replace("-", "_")}


def test_every_published_row_of_urlb_has_an_arm():
    rows = published.numbers("urlb").rows
    assert [row.name for row in rows if row.ours is None] == ["expert"]


def test_published_numbers_are_those_of_the_papers():
    table2, urlb = published.numbers("table2"), published.numbers("urlb")
    assert table2.value("APT", "atari/ms_pacman") == 2827.1
    assert table2.value("DrQ", "atari/alien") == 771.2
    assert table2.value("from scratch", "atari/alien") is None
    assert (table2.value("APT", "median"), table2.value("APT", "above_human")) == (47.5, 7)
    assert len(table2.tasks) == 26
    assert table2.aggregates == ("median", "mean", "above_human")
    assert published.numbers("table3").value("APT without contrast", "mean of 57") == 41.12
    assert published.numbers("table3").value("DIAYN with contrast", "median") == 1.76
    assert published.numbers("table3").value("MEPOL with contrast", "mean") == 21.78
    assert published.numbers("table3").value("VISR", "mean") == 128.07  # 64.31 in Table 2
    assert table2.value("VISR", "mean") == 64.31
    assert published.numbers("table4").value("APT, fixed encoder", "median") == 33.24
    assert published.numbers("table5").value("APT, random heads", "atari/qbert") == 2138.3
    assert published.numbers("exploration").value("positive", "atari/ms_pacman") == 363.7
    assert urlb.value("APT", "dmc/quadruped_jump") == 508
    assert urlb.value("APT", "dmc/jaco_reach_top_right") is None  # not printed
    assert next(row for row in urlb.rows if row.name == "expert").values["dmc/jaco_reach_top_right"] == 223
    with pytest.raises(ConfigError, match="did you mean 'table2'"):
        published.numbers("table22")


def test_larger_samples_have_every_game_and_give_the_stated_aggregates():
    printed, larger = published.sources("table2")
    assert (printed.heading, larger.heading) == ("printed", "larger sample")
    assert published.sources("urlb") == (published.numbers("urlb"),)
    assert larger.tasks == tuple(f"atari/{game}" for game in GAMES_26)
    assert larger.aggregates == ("median", "mean", "iqm")
    whole = {row.name: row for row in larger.rows if any(task in row.values for task in larger.tasks)}
    assert {*whole} == {
        *("simple", "curl", "drq_eps", "spr", "bbf", "bbf_8", "efficientzero", "iris", "mrq"),
    }
    for row in whole.values():
        scores = [human_normalized(game, row.values[f"atari/{game}"]) for game in GAMES_26]
        # The stated ones are of scores with all their digits.
        assert 100 * np.mean(scores) == pytest.approx(row.values["mean"], abs=0.15), row.name
        assert 100 * np.median(scores) == pytest.approx(row.values["median"], abs=0.15), row.name
    assert all(row.runs for row in larger.rows)
    assert larger.row("SPR").runs == "100"
    assert (larger.value("SPR", "mean"), printed.value("SPR", "mean")) == (61.6, 70.4)
    assert larger.value("DER", "mean") == 35.0
    # The printed row of demon_attack repeats crazy_climber; the larger sample has the game's own.
    games = ("atari/demon_attack", "atari/crazy_climber")
    assert len({printed.value("SPR", game) for game in games}) == 1
    assert [larger.value("SPR", game) for game in games] == [517.6, 36700]


def test_the_least_file_and_what_is_usual(tmp_path):
    mine = read(tmp_path, LEAST)
    assert (mine.name, mine.title, mine.seeds, mine.preset) == ("mine", "mine", (1,), None)
    arm = mine.arms["apt"]
    assert (arm.label, arm.phases, arm.method) == ("apt", ("pretrain", "finetune"), None)
    assert arm.evaluation == EvaluationSpec(episodes=10)
    assert mine.tasks[0].name == "PixelMaze-v0"
    assert mine.tasks[0].pretrain.env == "voidrl/PixelMaze-v0"


def test_names_of_tasks():
    assert make_task("atari/MsPacman").name == "ms_pacman"
    assert make_task("dmc/Walker-Run").pretrain.env == "dmc/walker"
    assert make_task("my_envs:make?size=3").name == "my_envs-make"
    tasks = read_experiment("table5").tasks
    assert [task.env for task in select(tasks, ["MsPacman", "pong"])] == ["atari/ms_pacman", "atari/pong"]
    assert len(select(tasks, ["atari57"])) == 57
    assert select(read_experiment("urlb").tasks, ["walker_run"])[0].pretrain.name == "walker"
    assert len(select(tasks, ["atari/alien", "alien"])) == 1
    with pytest.raises(ConfigError, match=r"unknown task 'alient'; did you mean 'alien'"):
        select(tasks, ["alient"])
    with pytest.raises(ConfigError, match=r"unknown task 'walker_rum'; did you mean 'walker_run'"):
        select(read_experiment("urlb").tasks, ["walker_rum"])
    with pytest.raises(ConfigError, match=r"unknown task 'gaol'; did you mean 'goal'"):
        select(read_experiment("demo").tasks, ["gaol"])
    assert len(GROUPS["urlb"]) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("titel = 'x'\n" + LEAST, "key in the experiment of .*mine.toml: 'titel'; did you mean 'title'"),
        (LEAST + "fases = ['train']", r"\[methods.apt\] of .*'fases'; did you mean 'phases'"),
        (LEAST + "phases = ['pretrian']", "'pretrian'; did you mean 'pretrain'"),
        (LEAST + "phases = ['finetune', 'pretrain']", r"phases = .* cannot be used: expected one of"),
        (LEAST + "phases = ['finetune']", "source = None cannot be used: expected the method whose agents"),
        (LEAST + "source = 'ap'", "source of .*'ap'; did you mean 'apt'"),
        (LEAST + "times = { updates_per_step = 0 }", "times.updates_per_step = 0 cannot be used"),
        (LEAST + "[methods.b]\nlabel = 'apt'", "label = 'apt' cannot be used: expected each label once"),
        (LEAST + "[methods.b]\nphases = ['train']\nmethod = 'apt'", "method = 'apt' cannot be used"),
        (LEAST + "[methods.'a b']", "the name of a folder, such as 'a-b'"),
        (LEAST + "preset = 'sprr'", r"preset in \[methods.apt\] of .*'sprr'; did you mean 'spr'"),
        (LEAST + "preset = 'drq'\npresets = ['drq']", "preset = 'drq' cannot be used: expected one of"),
        (LEAST + "[methods.b]\nsource = 'apt'\npreset = 'drq'", "preset = 'drq' cannot be used: .*source"),
        (LEAST + "[missing]\napt = 'x'", "missing.apt = 'x' cannot be used"),
        (LEAST + "[evaluation]\nepisodes = 3\nsteps = 5", "expected one of episodes and steps"),
        (LEAST + "[evaluation]\nepisodes = 'few'", "mine.toml: evaluation.episodes must be a positive whole"),
        (LEAST + "[pretrain]\nstep = 5", r"key in \[pretrain\] .*'step'; did you mean 'steps'"),
        (LEAST + "[presets.atari-demon]", "'atari-demon'; did you mean 'atari-demo'"),
        ("seeds = 3\n" + LEAST, "seeds = 3 cannot be used: expected a list"),
        ("seeds = [1, 1]\n" + LEAST, r"seeds = \[1, 1\] cannot be used: .*each of them once"),
        ("preset = 'maze-dem'\n" + LEAST, "'maze-dem'; did you mean 'maze-demo'"),
        ("published = 'table22'\n" + LEAST, "did you mean 'table2'"),
        ("threads = 0\n" + LEAST, "threads = 0 cannot be used"),
        ("title = 5\n" + LEAST, "title = 5 cannot be used: expected text"),
        ("[methods.apt]", "tasks = None cannot be used: expected a list of .* or a group: atari26"),
        ("tasks = ['urlb']", "has no methods"),
        ("tasks = ['a:b?x=1', 'a:b?x=2']\n[methods.apt]", "would both be named 'a-b'; give one a name"),
        ("tasks = [{ name = 'x' }]\n[methods.apt]", 'expected a table with env'),
        ("tasks = ['dmc/walker_rum']\n[methods.apt]", "'rum'; did you mean 'run'"),
        ("tasks = [\n=", r"mine.toml cannot be read as TOML: .*line 2"),
    ],
)  # fmt: skip
def test_mistakes_are_sentences(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path, capsys):
    assert cli.main(["experiment", "tabel2"]) == 2
    assert "unknown experiment 'tabel2'; did you mean 'table2'" in capsys.readouterr().err
    assert cli.main(["experiment", str(tmp_path / "none.toml")]) == 2
    assert "there is no file" in capsys.readouterr().err
    (tmp_path / "folder.toml").mkdir()
    assert cli.main(["experiment", str(tmp_path / "folder.toml")]) == 2
    assert "cannot be read: it is not a regular file" in capsys.readouterr().err
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert cli.main(["experiment", str(tmp_path / "bytes.toml")]) == 2
    assert "it is no UTF-8 text" in capsys.readouterr().err
