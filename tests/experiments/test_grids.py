"""Grids: which points a file describes, what is refused, and which runs a point has."""

import pytest
from done_cells import make_done

from voidrl.config import flat, to_json
from voidrl.errors import VoidrlError
from voidrl.experiments import planner as planning
from voidrl.experiments.estimate import estimate_all
from voidrl.experiments.format import read_experiment
from voidrl.experiments.grid import Axis, draw_points, point_folder, read_axes, short_names
from voidrl.experiments.planner import make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.state import state_of

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


@pytest.fixture(autouse=True)
def no_sizes(monkeypatch):
    """Sizes of agents are none of these tests' business, and take the longest."""
    monkeypatch.setattr(planning, "agent_bytes", lambda spec, config: None)


@pytest.fixture
def plan_of(tmp_path):
    def make(text, **request):
        path = tmp_path / "grid.toml"
        path.write_text(HEAD + text)
        request = {"device": "cpu", **request}
        return make_plan(read_experiment(path), ExperimentRequest(**request), tmp_path / "out")

    return make


def values_of(text):
    import tomllib

    return {name: axis.values for name, axis in read_axes("f", "grid", tomllib.loads(text)).items()}


def test_lists_ranges_and_log_ranges():
    assert values_of('"method.k" = [3, 6]\nlearner.double = [true, false]') == {
        "method.k": (3, 6),
        "learner.double": (True, False),
    }
    assert values_of("a = { from = 1, to = 9, step = 2 }") == {"a": (1, 3, 5, 7, 9)}
    assert values_of("a = { from = 0, to = 0.4, step = 0.1 }") == {"a": (0.0, 0.1, 0.2, 0.3, 0.4)}
    assert values_of("a = { from = 1, to = 2, count = 5 }") == {"a": (1, 1.25, 1.5, 1.75, 2)}
    assert values_of("a = { from = 1e-4, to = 1e-2, count = 3, log = true }") == {"a": (1e-4, 1e-3, 1e-2)}
    assert values_of("a = { from = 5, to = 5, count = 1 }") == {"a": (5,)}
    narrow = "a = { from = 0.9991, to = 0.9992, count = 5 }"
    assert values_of(narrow) == {"a": (0.9991, 0.999125, 0.99915, 0.999175, 0.9992)}
    assert values_of("a = { from = -0.1, to = 0.2, count = 4 }") == {"a": (-0.1, 0.0, 0.1, 0.2)}
    odd = Axis("a", low=0.000123456, high=0.000123459, count=2)  # rounded inside the range
    assert all(odd.low <= odd.draw(u / 100) <= odd.high for u in range(100))


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("a = []", "grid.a = [] cannot be used: expected at least one value"),
        ('a = [1, "b"]', "expected values of one type, and not numbers and text"),
        ("a = [true, 1]", "expected values of one type, and not numbers and true or false"),
        ("a = [1, 1]", "expected each value once"),
        ("a = 3", "expected a list of values, or a range such as"),
        ("a = { from = 1, to = 9, step = 0 }", "expected a step above 0"),
        ("a = { from = 1, to = 9, count = 1 }", "expected count = 2 or more, as its ends differ"),
        ("a = { from = 0, to = 1, count = 3, log = true }", "as 0 has no logarithm"),
        ("a = { from = -1, to = 1, count = 3, log = true }", "as 0 has no logarithm"),
        ("a = { from = 1, to = 9, step = 2, count = 3 }", "expected a range with one of step and count"),
        ("a = { from = 9, to = 1, count = 3 }", "expected numbers, from ≤ to"),
        ("a = { from = 1, to = 9, cuont = 3 }", "cuont is none of from, to, step, count, log"),
        ("a = { from = 1, count = 3 }", "expected a range with both ends"),
    ],
)
def test_a_bad_field_is_one_sentence(grid, said):
    with pytest.raises(VoidrlError) as error:
        values_of(grid)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_draws_are_the_same_again_and_a_larger_number_extends_them():
    axes = [Axis("a", low=1e-4, high=1e-2, count=3, log=True), Axis("b", (3, 6, 12))]
    few, many = draw_points(axes, 4, seed=0), draw_points(axes, 9, seed=0)
    assert many[:4] == few
    assert draw_points(axes, 4, seed=1) != few
    assert all(1e-4 <= point["a"] <= 1e-2 and point["b"] in (3, 6, 12) for point in many)
    # Another field leaves the draws of the others as they are.
    wider = draw_points([*axes, Axis("c", (True, False))], 4, seed=0)
    assert [{**point, "c": None} for point in wider] == [{**point, "c": None} for point in few]
    # Discrete fields alone are drawn without replacement, up to all of their points.
    lists = [Axis("a", (1, 2, 3)), Axis("b", ("x", "y"))]
    for number in (5, 6, 60):
        assert len({repr(point) for point in draw_points(lists, number, 0)}) == min(number, 6)


def test_draws_of_whole_numbers_reach_both_ends_evenly():
    axis = Axis("a", low=1, high=4, count=2, whole=True)
    found = [axis.draw((i + 0.5) / 400) for i in range(400)]
    assert [found.count(value) for value in (1, 2, 3, 4)] == [100] * 4


def test_folders_are_short_readable_and_unique():
    names = short_names(["learner.learning_rate", "method.k", "pretrain.steps", "finetune.steps"])
    assert names == {
        "learner.learning_rate": "learning_rate",
        "method.k": "k",
        "pretrain.steps": "pretrain.steps",
        "finetune.steps": "finetune.steps",
    }
    assert point_folder({"learner.learning_rate": 1e-3, "method.k": 12}, names) == "learning_rate=0.001,k=12"
    odd = [point_folder({"a": value}, {"a": "a"}) for value in ("x/y", "x y", "x-y", "ü" * 300, "ü" * 299)]
    assert len({*odd}) == len(odd)
    assert all(len(name) < 120 and "/" not in name and " " not in name for name in odd)


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


@pytest.mark.parametrize(
    ("env", "method"), [("own_envs:good", "apt"), ("CartPole-v1", "own_envs:Noted"), ("own_envs:good", None)]
)
def test_a_dry_run_has_the_same_cells_as_the_run_though_it_imports_no_code(tmp_path, env, method):
    own = {
        "apt": '"method.k" = { from = 3, to = 12, count = 3 }',
        "own_envs:Noted": '"method.notes" = [1, 2]',
    }
    field = own.get(method, '"pretrain.learner.n_step" = [1, 3]')
    path = tmp_path / "grid.toml"
    path.write_text(
        f"tasks = ['{env}']\nseeds = [1, 2]\n[grid]\n'learner.learning_rate' = [1e-3, 1e-4]\n"
        f"'finetune.learning_rate' = [1e-3, 1e-4]\n[methods.mine]\nmethod = '{method or 'apt'}'\n"
        f"[methods.mine.grid]\n{field}\n[methods.scratch]\nphases = ['train']\n"
    )
    dry, real = (
        make_plan(read_experiment(path), ExperimentRequest(), tmp_path, run_code=run_code)
        for run_code in (False, True)
    )
    assert dry.cells[0].probe.spec is None
    assert [(c.folder, c.source, c.point) for c in dry.cells] == [
        (c.folder, c.source, c.point) for c in real.cells
    ]
    pretrained, tuned = (sum(c.phase == phase for c in dry.cells) for phase in ("pretrain", "finetune"))
    assert tuned == 2 * pretrained  # two learning rates of fine-tuning share each
    assert sum(c.phase == "train" for c in dry.cells) == 4


def test_rates_of_points_with_other_numbers_of_updates_are_told_apart(plan_of):
    plan = plan_of(APT + '[grid]\n"updates_per_step" = [0.25, 1.0]\n', seeds=(1, 2))
    first = {cell.config.updates_per_step: cell for cell in plan.cells if cell.folder.startswith("maze/")}
    for updates, rate in ((0.25, 100.0), (1.0, 25.0)):
        make_done(plan, first[updates], rate=rate)
    states = {cell.folder: state_of(cell, plan.path(cell)) for cell in plan.cells}
    estimates = estimate_all(plan, states)
    left = [cell for cell in plan.cells if cell.phase == "pretrain" and states[cell.folder].kind == "missing"]
    found = {
        cell.config.updates_per_step: estimates[cell.folder].seconds / cell.config.steps for cell in left
    }
    assert found == {0.25: pytest.approx(1 / 100), 1.0: pytest.approx(1 / 25)}


def test_fields_of_one_method_and_of_phases(plan_of):
    own = '[methods.apt.grid]\n"pretrain.steps" = ["1k", "2k"]\n"pretrain.learner.n_step" = [1, 3]\n'
    plan = plan_of(APT + own + SCRATCH)
    finals = [cell for cell in plan.cells if cell.is_final]
    assert [cell.folder for cell in finals][-1] == "goal/scratch/seed1"
    assert len(finals) == 5
    by_folder = {cell.folder: cell for cell in plan.cells}
    cell = by_folder["goal/apt/steps=1k,n_step=3/seed1"]
    source = by_folder[cell.source]
    assert (source.config.steps, source.config.learner.n_step) == (1000, 3)
    assert cell.config.steps == 1000  # of fine-tuning, as in the file


def test_samples_are_resumed_by_a_larger_number(plan_of):
    rate = '"learner.learning_rate" = { from = 1e-4, to = 1e-2, count = 3, log = true }'
    text = f'{APT}[grid]\n{rate}\n"method.k" = [3, 6]\n'
    few, many = plan_of(text, samples=2), plan_of(text, samples=4)
    assert {cell.folder for cell in few.cells} < {cell.folder for cell in many.cells}
    assert len([cell for cell in many.cells if cell.is_final]) == 4
    assert plan_of(text, samples=2).cells[0].folder == few.cells[0].folder
    ks = [cell.config.method.k for cell in many.cells]
    assert all(isinstance(k, int) and k in (3, 6) for k in ks)


def test_a_range_of_a_field_of_whole_numbers_is_rounded(plan_of):
    grid = '[grid]\n"method.k" = { from = 3, to = 30, count = 3, log = true }\n'
    plan = plan_of(APT + grid)
    assert [cell.config.method.k for cell in plan.cells if cell.is_final] == [3, 9, 30]


@pytest.mark.parametrize(
    ("text", "request_", "said"),
    [
        ('[grid]\n"method.kk" = [1, 2]', {}, "did you mean 'method.k'"),
        ('[methods.apt.grid]\n"learner.n_stepp" = [1, 2]', {}, "[methods.apt.grid]: unknown"),
        ('[grid]\n"method.k" = [3, 0]', {}, "grid.toml: grid.method.k = 0 cannot be used"),
        ('[grid]\n"method.k" = ["a", "b"]', {}, "method.k = 'a' cannot be used: expected a whole number"),
        ("[grid]\nseed = [1, 2]", {}, "a grid cannot vary seed: list seeds = [1, 2, 3] in the file"),
        ('[grid]\n"env.id" = ["a", "b"]', {}, "a grid cannot vary env.id: list tasks in the file"),
        ("[grid]\nsteps = [10, 20]", {}, "use pretrain.steps, finetune.steps or train.steps"),
        ('[grid]\n"train.steps" = [100, 200]', {}, "none of the runs has the phase 'train'"),
        ('[grid]\n"evaluation.episodes" = [1, 2]', {}, "a grid cannot vary evaluation.episodes"),
        ('[grid]\n"finetune.steps" = [100, 200]', {}, "finetune.steps is in [grid] and in [finetune]"),
        ('[grid]\n"method.k" = [3]\n[config]\nmethod.k = 4', {}, "method.k is in [grid] and in [config]"),
        ('[grid]\n"method.k" = [3, 4]', {"changes": {"method.k": 5}}, "leave out --set method.k=5"),
        (
            '[grid]\n"method.k" = { from = 1, to = 3, count = 9 }',
            {},
            "count up to 3, as this field takes whole",
        ),
        ('[grid]\n"method.k" = [3, 4]\n[tune]\nsampler = "grid"', {}, "tune.sampler = 'grid' cannot be used"),
        ("", {"samples": 3}, "--samples 3 cannot be used with experiment 'grid', which has no grid"),
        ('[grid]\n"method.k" = [3, 4]', {"samples": 0}, "samples = 0 cannot be used"),
        ('[grid]\n"method.k" = [3, 4]', {"samples": 3, "tune": 3}, "exclude each other"),
        ('[grid]\n"method.k" = [3, 4]', {"grid_seed": 1}, "--grid-seed 1 cannot be used without --samples"),
        ("[grid]", {}, "[grid] is empty"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(plan_of, text, request_, said):
    with pytest.raises(VoidrlError) as error:
        plan_of(APT + text + "\n", **request_)
    assert said in str(error.value)


def test_a_field_without_effect_in_its_method_is_refused(plan_of):
    with pytest.raises(VoidrlError, match=r"methods.scratch.grid.method.k changes none of its runs"):
        plan_of(SCRATCH + '[methods.scratch.grid]\n"method.k" = [3, 4]\n')


def test_tuning_without_optuna_names_the_extra(plan_of, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(VoidrlError, match=r"pip install 'voidrl\[tune\]'"):
        plan_of(APT + '[grid]\n"method.k" = [3, 4]\n', tune=2)


def test_the_shipped_grid_has_twelve_cells():
    plan = make_plan(read_experiment("maze-grid"), ExperimentRequest(device="cpu"), "out")
    assert len(plan.cells) == 12
    configs = [flat(to_json(cell.config)) for cell in plan.cells]
    assert len({(each["learner.learning_rate"], each["method.k"]) for each in configs}) == 12


def test_folders_of_awkward_values_are_unique_and_fit_file_systems():
    def folder(*values):
        return point_folder(dict(zip("ab", values, strict=False)), {"a": "a", "b": "b"})

    names = [
        folder("../x", 1), folder("..-x", 1), folder("1,b=2", "3"), folder("1", "2,b=3"), folder(("x,y",)),
        folder(("x", "y")), folder(-0.5), folder(0.5), folder(True), folder("é" * 99), folder("ü" * 99),
        folder(0.1234567), folder(0.12345671), folder("w" * 300),
    ]  # fmt: skip
    assert len({*names}) == len(names)
    assert all("/" not in name and len(name.encode()) < 120 for name in names)
    with pytest.raises(VoidrlError, match="each value once"):
        read_axes("f.toml", "grid", {"a": [1, 1.0]})
