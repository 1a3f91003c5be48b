"""Plans: every cell of every shipped experiment has a config, and differs from the others where it should."""

import pytest
import torch
from done_cells import plan_of

from voidrl.agent import Agent
from voidrl.config import flat, to_json, update
from voidrl.errors import ConfigError
from voidrl.experiments.format import read_experiment, shipped
from voidrl.experiments.record import make_record
from voidrl.experiments.scale import count_updates, scale_config
from voidrl.training import build
from voidrl.training.build import BONUS_COEFFICIENT, layers_for


def narrow(config):
    """Changes that make networks small, and nothing else."""
    width = {"encoder.width": 0.1, "encoder.hidden_dim": min(8, config.representation.encoder.hidden_dim)}
    trunk = {"trunk_dim": min(8, config.learner.trunk_dim)} if hasattr(config.learner, "trunk_dim") else {}
    method = {"hidden_dim": 8} if hasattr(config.method, "hidden_dim") else {}
    learner = {"encoder.width": 0.1, "hidden_dim": 8, **trunk}
    return {"representation": width, "learner": learner, "method": method}


def by_arm(plan):
    return {(cell.arm.name, cell.phase): cell for cell in plan.cells}


def differences(one, other):
    a, b = flat(to_json(one)), flat(to_json(other))
    return {name: b.get(name) for name in {**a, **b} if a.get(name) != b.get(name)}


@pytest.mark.parametrize("name", shipped())
def test_every_cell_has_a_config_that_builds(name):
    # With all their methods, all tasks take seconds.
    few = {"urlb": ("walker_run",), "figure3": ("walker_run", "cheetah_run"), "table2": ("alien", "pong")}
    few |= {"atari-panel": ("freeway",), **dict.fromkeys(("table3", "table4", "outlook"), ("alien",))}
    plan = plan_of(name, seeds=(1,), tasks=few.get(name, ()))
    folders = [cell.folder for cell in plan.cells]
    assert len(set(folders)) == len(folders)
    for cell in plan.cells:
        assert cell.seed == 1 or plan.experiment.pretrain_seeds
        assert cell.config.steps == cell.protocol_steps
        assert cell.source is None or folders.index(cell.source) < folders.index(cell.folder)
        assert (cell.phase == "finetune") == (cell.source is not None)
    kinds = {(cell.arm.name, cell.phase): cell for cell in plan.cells}
    for cell in kinds.values():
        config, spec = cell.config, cell.spec
        assert build.build_config(spec, [to_json(config)]) == config  # nothing is left open
        Agent(spec, update(config, narrow(config)), torch.device("cpu"))  # its pieces fit each other


BONUS = """
tasks = ["voidrl/PixelMaze-v0"]
preset = "maze-demo"
[methods.scratch]
phases = ["train"]
[methods.counted]
phases = ["train"]
bonus = "rnd"
config.method.rep_dim = 8
[methods.strong]
phases = ["train"]
preset = "drq"
bonus = "apt"
config.bonus.coefficient = 0.5
"""


def test_a_method_from_scratch_may_have_a_bonus(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(BONUS)
    plan = plan_of(file, steps_scale=0.5)
    configs = {cell.arm.name: cell.config for cell in plan.cells}
    assert {
        name: (c.method.name, c.bonus.coefficient) for name, c in configs.items() if c.effective.has_bonus
    } == {
        "counted": ("rnd", BONUS_COEFFICIENT),
        "strong": ("apt", 0.5),
    }
    assert configs["counted"].method.rep_dim == 8
    assert configs["counted"].learner == configs["scratch"].learner
    methods = {cell.arm: cell.method for cell in make_record(plan, ()).cells}
    assert methods == {"scratch": "scratch", "counted": "scratch + rnd", "strong": "scratch + apt"}
    for wrong in ('phases = ["pretrain"]', 'phases = ["train"]\nlike = "tuned"\n[methods.tuned]'):
        file.write_text(f'tasks = ["voidrl/PixelMaze-v0"]\n[methods.one]\nbonus = "rnd"\n{wrong}\n')
        with pytest.raises(ConfigError, match=r"methods.one.bonus = 'rnd' cannot be used"):
            read_experiment(file)


def test_sizes_of_the_papers_experiments():
    table2 = plan_of("table2", methods=("apt", "scratch"))
    assert len(table2.cells) == 26 * 10 * 3
    steps = {phase: cell.config.steps for (_, phase), cell in by_arm(table2).items()}
    assert steps == {"pretrain": 250_000_000, "finetune": 100_000, "train": 100_000}
    assert [cell.seed for cell in table2.cells[:79]] == [1] * 78 + [2]  # a whole table first, then another
    urlb = plan_of("urlb", seeds=(1,), methods=("apt", "scratch"))
    assert [cell.folder for cell in urlb.cells if cell.phase == "pretrain"] == [
        f"{domain}/apt/seed1" for domain in ("walker", "quadruped", "jaco")
    ]
    tuned = [cell for cell in urlb.cells if cell.source == "walker/apt/seed1"]
    assert [cell.task for cell in tuned] == [
        f"dmc/walker_{task}" for task in ("stand", "walk", "run", "flip")
    ]
    assert tuned[0].evaluation["episodes"] == 10


def test_ablations_differ_from_apt_in_what_they_are_named_for_and_nothing_else():
    cells = by_arm(plan_of("table4", tasks=("alien",), seeds=(1,)))
    apt = {phase: cells["apt", phase].config for phase in ("pretrain", "finetune")}
    encoder = "representation.encoder"
    expected = {
        "half_updates": {"updates_per_step": 1.0},
        "relu": {f"{encoder}.activation": "relu", f"{encoder}.spectral_norm_iterations": 0},
        "random_neighbors": {"method.neighbors": "random"},
    }
    for arm, changed in expected.items():
        for phase, config in apt.items():
            assert differences(config, cells[arm, phase].config) == changed, (arm, phase)
    fixed = differences(apt["pretrain"], cells["fixed_encoder", "pretrain"].config)
    contrast = ("temperature", "projection_hidden", "projection_dim")
    gone = {f"representation.{name}": None for name in contrast}
    assert fixed == {"representation.name": "fixed", "encoder_trainers": [], **gone}
    table3 = by_arm(plan_of("table3", tasks=("alien",), seeds=(1,)))
    without = table3["apt_no_contrast", "pretrain"].config
    assert without.representation.name == "learner"
    diayn, contrast = (table3[name, "pretrain"].config for name in ("diayn", "diayn_contrast"))
    assert (diayn.representation.name, diayn.encoder_trainers) == ("learner", ("method", "learner"))
    assert contrast.representation == table3["apt", "pretrain"].config.representation
    assert (contrast.encoder_trainers, contrast.method) == (("representation",), diayn.method)
    with pytest.raises(ConfigError, match=r"relu.* with preset = 'atari-fast' cannot be used: .*atari-p"):
        plan_of("table4", tasks=("alien",), preset="atari-fast", methods=("relu",))


def test_heads_share_one_pretraining():
    plan = plan_of("table5", tasks=("alien",), seeds=(1,))
    assert [cell.folder for cell in plan.cells] == [
        *("alien/apt/seed1", "alien/pretrained_heads/seed1", "alien/random_heads/seed1"),
    ]
    assert plan.cells[1].source == plan.cells[2].source == "alien/apt/seed1"
    kept, new = plan_of("table5", tasks=("alien",), seeds=(1,), preset="atari-fast").cells[1:]
    assert (kept.config.finetune.heads, new.config.finetune.heads) == ("pretrained", "random")
    assert differences(kept.config, new.config) == {"finetune.heads": "random"}
    assert [cell.label for cell in plan.cells] == ["APT", "APT, pre-trained heads", "APT, random heads"]
    alone = plan_of("table5", tasks=("alien",), seeds=(1,), methods=("random_heads",))
    assert [cell.folder for cell in alone.cells] == ["alien/apt/seed1", "alien/random_heads/seed1"]


def test_apt_on_raw_states_differs_from_apt_in_its_representation_and_is_left_out_from_pixels():
    one = {"seeds": (1,), "tasks": ("walker_run",), "methods": ("apt", "apt_ind")}
    cells = by_arm(plan_of("urlb", **one))
    changed = differences(cells["apt", "pretrain"].config, cells["apt_ind", "pretrain"].config)
    assert changed.pop("representation.name") == "identity"
    assert all(name.startswith(("representation.", "method.")) for name in changed)
    plan = plan_of("urlb", seeds=(1,), tasks=("walker_run",), preset="urlb-pixels")
    assert "apt_ind" not in {cell.arm.name for cell in plan.cells}
    assert plan.notes == ["left out, as not for preset urlb-pixels: APT (raw states)"]


def test_an_arm_with_its_own_preset_is_trained_and_evaluated_as_that_agent():
    one = {"tasks": ("alien",), "seeds": (1,), "methods": ("apt", "drq")}
    cells = by_arm(plan_of("table2", **one))
    drq, apt = cells["drq", "train"], cells["apt", "finetune"]
    layers = [layer.values for layer in layers_for("atari/alien", "train", "drq", {"seed": 1})]
    own = build.build_config(drq.spec, [*layers, {"env": to_json(drq.config.env)}])
    assert differences(own, drq.config) == {"log.eval_every_steps": 0}  # the file's
    assert (drq.protocol_steps, drq.config.learner.epsilon_end) == (100_000, 0.1)
    lengths = [(each.evaluation["episodes"], each.evaluation["steps"]) for each in (drq, apt)]
    assert lengths == [(100, None), (None, 125_000)]
    assert [each.evaluation["epsilon"] for each in (drq, apt)] == [0.05, 0.001]
    # Neither another preset nor what fine-tuning is set to is for this arm.
    tuning = {"finetune.steps": 30_000, "finetune.updates_per_step": 0.5}
    alone = {**one, "methods": ("drq",)}
    assert by_arm(plan_of("table2", preset="atari-fast", changes=tuning, **alone))["drq", "train"] == drq
    changes = {"train.steps": "20k", "learner.n_step": 3, "evaluation.episodes": 7}
    changed = by_arm(plan_of("table2", changes=changes, **alone))["drq", "train"]
    assert (changed.config.steps, changed.config.learner.n_step) == (20_000, 3)
    assert changed.evaluation["episodes"] == 7
    short = by_arm(plan_of("table2", steps_scale=0.1, **alone))["drq", "train"]
    assert (short.config.steps, short.protocol_steps, short.evaluation["episodes"]) == (10_000, 100_000, 10)


def test_an_arm_that_needs_what_only_the_user_has_is_left_out_without_it():
    plan = plan_of("figure3", tasks=("walker_run",), seeds=(1,))
    assert {cell.arm.name for cell in plan.cells} == {"apt", "scratch", "drq", "cbb", "count_bonus"}
    assert plan.notes == [
        "left out, for want of representation.weights (use --set): ImageNet features",
    ]
    steps = {cell.arm.name: cell.config.steps for cell in plan.cells if cell.phase != "pretrain"}
    assert {*steps.values()} == {500_000}
    given = {"changes": {"representation.weights": "resnet18.pth"}}
    for request in ({"methods": ("imagenet",)}, {"methods": ("imagenet", "apt"), **given}):
        cells = plan_of("figure3", tasks=("walker_run",), seeds=(1,), **request).cells
        cell = next(cell for cell in cells if cell.arm.name == "imagenet")
        assert (cell.phase, cell.config.representation.name) == ("train", "imagenet")
        assert cell.config.representation.weights == request.get("changes", {}).get(
            "representation.weights", ""
        )


def test_what_is_set_reaches_the_runs_that_it_is_for():
    changes = {
        "method.k": 3, "learner.n_step": 4, "finetune.steps": 30_000, "pretrain.steps": "2M",
        "train.warmup_steps": 7, "evaluation.episodes": 4, "updates_per_step": 0.5,
    }  # fmt: skip
    cells = by_arm(plan_of("exploration", seeds=(1,), preset="atari-fast", changes=changes))
    apt, tuned = cells["apt", "pretrain"].config, cells["finetuned", "finetune"].config
    assert (apt.method.k, apt.steps, apt.learner.n_step, apt.updates_per_step) == (3, 2_000_000, 4, 0.5)
    assert not hasattr(cells["random", "pretrain"].config.method, "k")
    assert (tuned.steps, tuned.learner.n_step) == (30_000, 4)
    assert tuned.updates_per_step == 0.125  # fine-tuning has its own in this preset
    scratch = cells["scratch", "train"].config
    assert (scratch.steps, scratch.warmup_steps) == (30_000, 7)
    assert {cell.evaluation["episodes"] for cell in cells.values()} == {4}
    assert {cell.evaluation["steps"] for cell in cells.values()} == {None}
    goal = {cell.arm.name: cell.config for cell in plan_of("demo", changes={"updates_per_step": 2}).cells}
    assert (
        goal["finetuned"].updates_per_step == goal["scratch"].updates_per_step == 2
    )  # before the file's own
    ablation = plan_of("table4", tasks=("alien",), seeds=(1,), changes={"method.neighbors": "nearest"})
    assert by_arm(ablation)["random_neighbors", "pretrain"].config.method.neighbors == "random"
    assert ablation.notes == ["method.neighbors keeps its own value in APT, random neighbors"]


@pytest.mark.parametrize(
    ("name", "request_", "message"),
    [
        ("table3", {"methods": ("atp",)}, "unknown method 'atp'; did you mean 'apt'"),
        ("demo", {"seeds": (1, 1)}, "each of them once"),
        ("demo", {"seeds": (-1,)}, "seed = -1 cannot be used"),
        ("demo", {"preset": "maze-dem"}, "unknown preset 'maze-dem'; did you mean 'maze-demo'"),
        ("demo", {"changes": {"learner.n_stepp": 3}}, "did you mean 'learner.n_step'"),
        ("demo", {"changes": {"method.k": 3}, "methods": ("random",)}, "config field 'method.k'.*None"),
        ("demo", {"changes": {"seed": 3}}, "seed = 3 cannot be set for all runs: .*--seeds"),
        ("demo", {"changes": {"env": "atari/pong"}}, "env = 'atari/pong' cannot be set .*--tasks"),
        ("demo", {"changes": {"evaluation.episode": 3}}, "did you mean 'episodes'"),
        ("demo", {"changes": {"train.warmup_steps": 3}, "methods": ("apt",)}, "none .* has the phase"),
        ("demo", {"steps_scale": 0.0}, "steps_scale = 0.0 cannot be used"),
    ],
)  # fmt: skip
def test_bad_requests_are_one_sentence(name, request_, message):
    with pytest.raises(ConfigError, match=message):
        plan_of(name, **request_)


def test_fewer_steps_leave_room_to_learn():
    apt = by_arm(plan_of("table2", tasks=("alien",), seeds=(1,), methods=("apt", "scratch", "drq")))
    for cell in apt.values():
        short = scale_config(cell.config, 0.01)
        assert short.steps == cell.config.steps // 100
        assert short.effective.warmup_steps <= max(short.steps // 5, 1)
        assert count_updates(short) > 0.7 * short.steps * short.updates_per_step
    long, short = apt["apt", "pretrain"].config, scale_config(apt["apt", "pretrain"].config, 0.01)
    assert short.effective.warmup_steps == long.effective.warmup_steps == 1600  # of 2.5M steps: it stays
    tuned = scale_config(apt["apt", "finetune"].config, 0.01)
    assert (tuned.steps, tuned.finetune.warmup_steps, tuned.log.log_every_steps) == (1000, 200, 50)
    demo = {cell.arm.name: cell for cell in plan_of("demo", steps_scale=0.01).cells}
    assert demo["apt"].config.steps == 160
    assert demo["apt"].config.learner.epsilon_decay_steps == 32
    assert demo["scratch"].config.log.eval_every_steps == 8  # ten evaluations, as at full length
    assert demo["scratch"].evaluation["episodes"] == 3
    assert demo["apt"].protocol_steps == 16_000
    assert scale_config(long, 1) is long
    snapshots = scale_config(
        plan_of("urlb", seeds=(1,), methods=("apt",)).cells[0].config, 0.1
    ).log.snapshot_steps
    assert snapshots == (10_000, 50_000, 100_000, 200_000)


def test_a_file_of_ones_own_with_any_kind_of_environment(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        tasks = ["tiny_runs:Walk", { name = "short", env = "tiny_runs:Walk?length=3" }, "CartPole-v1"]
        seeds = [4]
        [config]
        learner.batch_size = 32
        [finetune]
        steps = 50
        [methods.apt]
        method = "apt"
        pretrain = { steps = "1k" }
        [methods.scratch]
        phases = ["train"]
        """
    )
    plan = plan_of(path, None)
    assert str(plan.out) == "runs/mine"
    folders = [cell.folder for cell in plan.cells]
    assert folders[:3] == [f"tiny_runs-Walk/{arm}/seed4" for arm in ("apt-pretrain", "apt", "scratch")]
    assert folders[3] == "short/apt-pretrain/seed4"
    assert [cell.config.steps for cell in plan.cells[:3]] == [1000, 50, 50]
    assert plan.cells[0].config.learner.batch_size == 32
    assert plan.cells[0].config.representation.name == "identity"  # vectors: decided by the environment
    assert plan.cells[-1].config.learner.name == "dqn"
    domain = path.with_name("domain.toml")
    domain.write_text("tasks = ['dmc/walker_run']\n[methods.apt]\nphases = ['pretrain']")
    with pytest.raises(ConfigError, match="'dmc/walker', which has no reward to evaluate"):
        plan_of(domain)
