"""Grids: which points a file describes, what is refused, and which runs a point has."""

import tomllib

import done_cells
import pytest

from voidrl.config import to_json
from voidrl.errors import VoidrlError
from voidrl.experiments.grid import point_folder, read_axes, short_names

HEAD = """
preset = "maze-demo"
finetune = { steps = "1k" }
[[tasks]]
name = "goal"
env = "voidrl/PixelMaze-v0?size=5&goal=far"
pretrain = { name = "maze", env = "voidrl/PixelMaze-v0?size=5" }
"""
APT = """
[methods.apt]
label = "APT"
method = "apt"
"""
SCRATCH = """
[methods.scratch]
phases = ["train"]
"""


@pytest.fixture
def plan_of(tmp_path):
    def make(text, **request):
        path = tmp_path / "grid.toml"
        path.write_text(HEAD + text)
        return done_cells.plan_of(path, tmp_path / "out", device="cpu", **request)

    return make


def values_of(text):
    return {name: axis.values for name, axis in read_axes("f: grid", tomllib.loads(text)).items()}


def test_lists_ranges_and_log_ranges():
    assert values_of('"method.k" = [3, 6]\nlearner.double = [true, false]') == {
        "method.k": (3, 6),
        "learner.double": (True, False),
    }
    assert values_of("a = { from = 1.0, to = 2.0, count = 5 }") == {"a": (1, 1.25, 1.5, 1.75, 2)}
    assert values_of("a = { from = 1e-4, to = 1e-2, count = 3, log = true }") == {"a": (1e-4, 1e-3, 1e-2)}
    assert values_of("a = { from = 1e-12, to = 1e-4, count = 3, log = true }") == {"a": (1e-12, 1e-8, 1e-4)}
    assert values_of("a = { from = -0.1, to = 0.2, count = 4 }") == {"a": (-0.1, 0.0, 0.1, 0.2)}
    assert values_of("a = { from = 3, to = 30, count = 3, log = true }") == {"a": (3, 9, 30)}  # whole ends
    assert values_of("a = [[1, 2], [3]]") == {"a": ((1, 2), (3,))}


@pytest.mark.parametrize(
    "grid",
    [
        'a = [1, "b"]',
        "a = [1, 1.0]",
        "a = { from = 1, to = 9, count = 1 }",
        "a = { from = 1, to = 3, count = 9 }",
        "a = { from = 0, to = 1, count = 3, log = true }",
        "a = { from = 1, to = 9, cuont = 3 }",
    ],
)
def test_a_bad_field_is_one_sentence(grid):
    with pytest.raises(VoidrlError, match=r"f: grid.a = .* cannot be used: expected [^\n]*$"):
        values_of(grid)


def test_folders_are_short_readable_and_unique():
    names = short_names(["learner.learning_rate", "method.k", "pretrain.steps", "finetune.steps"])
    assert names == {
        "learner.learning_rate": "learning_rate",
        "method.k": "k",
        "pretrain.steps": "pretrain.steps",
        "finetune.steps": "finetune.steps",
    }
    assert point_folder({"learner.learning_rate": 1e-3, "method.k": 12}, names) == "learning_rate=0.001,k=12"

    def folder(*values):
        return point_folder(dict(zip("ab", values, strict=False)), {"a": "a", "b": "b"})

    odd = [
        folder("../x", 1), folder("..-x", 1), folder("1,b=2", "3"), folder("1", "2,b=3"), folder(("x,y",)),
        folder(("x", "y")), folder(-0.5), folder(0.5), folder(True), folder("é" * 99), folder("ü" * 99),
        folder(0.1234567), folder(0.12345671), folder("w" * 300), folder("x y"), folder("x-y"),
    ]  # fmt: skip
    assert len({*odd}) == len(odd)
    assert all("/" not in name and " " not in name and len(name.encode()) < 120 for name in odd)


def test_points_are_cells_and_share_equal_pre_trainings(plan_of):
    grid = '[grid]\n"method.k" = [3, 6]\n"finetune.learning_rate" = [1e-3, 1e-4, 1e-5]\n'
    plan = plan_of(APT + SCRATCH + grid, seeds=(1, 2))
    finals = [cell for cell in plan.cells if cell.is_final and cell.arm.name == "apt"]
    pretrained = [cell for cell in plan.cells if cell.phase == "pretrain"]
    assert [cell.folder for cell in pretrained] == [f"maze/apt/k={k}/seed{s}" for s in (1, 2) for k in (3, 6)]
    assert len(finals) == 12
    cell = next(cell for cell in finals if cell.folder == "goal/apt/k=6,learning_rate=0.0001/seed2")
    assert cell.source == "maze/apt/k=6/seed2"
    assert (cell.config.method.k, cell.config.effective.learning_rate) == (6, 1e-4)
    assert cell.label == "APT (k 6, learning_rate 0.0001)"
    assert cell.point == {"method.k": 6, "finetune.learning_rate": 1e-4}
    assert {to_json(cell.config)["finetune"]["learning_rate"] for cell in pretrained} == {None}
    # Without pre-training, neighbors change nothing; the learning rate does, as with --set.
    scratch = [cell.folder for cell in plan.cells if cell.arm.name == "scratch"]
    assert scratch[:3] == [f"goal/scratch/learning_rate={lr}/seed1" for lr in ("0.001", "0.0001", "1e-05")]
    assert len(scratch) == 6


def test_fields_of_one_method_and_of_phases(plan_of):
    own = '[grid]\n"pretrain.steps" = ["1k", "2k"]\n"pretrain.learner.n_step" = [1, 3]\n'
    plan = plan_of(APT + own + SCRATCH)
    finals = [cell for cell in plan.cells if cell.is_final]
    assert [cell.folder for cell in finals][-1] == "goal/scratch/seed1"
    assert len(finals) == 5
    by_folder = {cell.folder: cell for cell in plan.cells}
    cell = by_folder["goal/apt/steps=1k,n_step=3/seed1"]
    source = by_folder[cell.source]
    assert (source.config.steps, source.config.learner.n_step) == (1000, 3)
    assert cell.config.steps == 1000  # of fine-tuning, as in the file


@pytest.mark.parametrize(
    ("text", "request_", "said"),
    [
        ('[grid]\n"method.kk" = [1, 2]', {}, "did you mean 'method.k'"),
        ('[grid]\n"replay.capacity" = [1, 2]', {}, "grid.toml: [grid]: unknown"),
        ('[grid]\n"method.k" = [3, 0]', {}, "grid.toml: [grid]: method.k = 0 cannot be used"),
        ("[grid]\nseed = [1, 2]", {}, "a grid cannot vary seed: use --methods, --seeds"),
        ("[grid]\nsteps = [10, 20]", {}, "pretrain.steps, finetune.steps or train.steps"),
        ('[grid]\n"train.steps" = [100, 200]', {}, "train.steps changes none of the runs"),
        ('[grid]\n"method.k" = [3, 4]', {"changes": {"method.k": 5}}, "leave out --set method.k=5"),
        ("", {"tune": 3}, "--tune 3 needs a file with [grid]"),
        ('[grid]\n"method.k" = [3, 4]', {"tune": 0}, "tune = 0 cannot be used"),
        ("[grid]", {}, 'expected a field, such as "method.k"'),
    ],
)
def test_bad_input_is_refused_before_anything_starts(plan_of, text, request_, said):
    with pytest.raises(VoidrlError) as error:
        plan_of(APT + text + "\n", **request_)
    assert said in str(error.value)


def test_tuning_without_optuna_names_the_extra(plan_of, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(VoidrlError, match=r"pip install 'optuna"):
        plan_of(APT + '[grid]\n"method.k" = [3, 4]\n', tune=2)
