"""Pre-training seeds × fine-tuning seeds, scales, and training from scratch as fine-tuning does it."""

import argparse
import dataclasses

import pytest
from done_cells import plan_of

from voidrl.cli.options import ReadSeeds, read_seeds
from voidrl.config import flat, to_json
from voidrl.config.schema import FinetuneConfig
from voidrl.errors import ConfigError
from voidrl.experiments.configs import ADAPTATION

WALKS = """
tasks = [{ name = "walk", env = "tiny_runs:Walk" }]
pretrain_seeds = [1, 2]
seeds = [1, 2, 3]
preset = "maze-demo"
[config]
learner = { batch_size = 8, hidden_dim = 8, encoder = { feature_dim = 4 } }
[pretrain]
steps = 40
[finetune]
steps = 24
[methods.zero_shot]
phases = ["pretrain"]
[methods.finetuned]
source = "zero_shot"
[methods.scratch]
phases = ["train"]
like = "finetuned"
[methods.other]
phases = ["train"]
seeds = [1, 2, 3, 4, 5, 6]
"""


@pytest.fixture
def walks(tmp_path):
    path = tmp_path / "walks.toml"
    path.write_text(WALKS)
    return path


def folders(plan, arm):
    return [cell.folder.removeprefix(f"walk/{arm}/") for cell in plan.cells if cell.arm.name == arm]


def test_every_pretrained_agent_is_fine_tuned_with_seeds_of_its_own(walks):
    plan = plan_of(walks)
    assert folders(plan, "zero_shot") == ["seed1", "seed2"]  # once, evaluated and fine-tuned
    assert folders(plan, "finetuned") == [
        f"pretrain{p}-seed{seed}" for p, seed in [(1, 1), (2, 4), (1, 2), (2, 5), (1, 3), (2, 6)]
    ]
    assert folders(plan, "scratch") == [f"seed{seed}" for seed in (1, 4, 2, 5, 3, 6)]
    assert folders(plan, "other") == [f"seed{seed}" for seed in range(1, 7)]
    tuned = [cell for cell in plan.cells if cell.phase == "finetune"]
    assert [cell.pretrain_seed for cell in tuned] == [1, 2] * 3
    assert all(cell.source == f"walk/zero_shot/seed{cell.pretrain_seed}" for cell in tuned)
    assert all(cell.folder.endswith(f"seed{cell.seed}") for cell in plan.cells)
    zero_shot = [cell for cell in plan.cells if cell.arm.name == "zero_shot"]
    assert all(cell.evaluation is not None and cell.pretrain_seed == cell.seed for cell in zero_shot)
    assert all(cell.pretrain_seed is None for cell in plan.cells if cell.phase == "train")


def test_a_pretraining_of_the_arm_itself_has_the_pretraining_seeds(tmp_path):
    path = tmp_path / "own.toml"
    head = "tasks = [{ name = 'walk', env = 'tiny_runs:Walk' }]\npretrain_seeds = [1, 2]\nseeds = [1, 2]\n"
    path.write_text(f"{head}[methods.apt]\n[methods.late]\nsource = 'apt'\nseeds = [1]\n")
    plan = plan_of(path)
    pretrained = [cell.folder for cell in plan.cells if cell.phase == "pretrain"]
    assert pretrained == ["walk/apt-pretrain/seed1", "walk/apt-pretrain/seed2"]
    assert folders(plan, "late") == ["pretrain1-seed1", "pretrain2-seed3"]


def test_seeds_of_the_command_line(walks):
    one = plan_of(walks, seeds=(2,))
    assert folders(one, "finetuned") == ["pretrain1-seed2", "pretrain2-seed5"]
    assert folders(one, "scratch") == ["seed2", "seed5"]
    assert folders(one, "zero_shot") == ["seed1", "seed2"]
    assert folders(one, "other") == ["seed2"]
    second = plan_of(walks, pretrain_seeds=(2,), methods=("finetuned", "scratch"))
    assert folders(second, "finetuned") == ["pretrain2-seed4", "pretrain2-seed5", "pretrain2-seed6"]
    assert folders(second, "scratch") == ["seed4", "seed5", "seed6"]
    assert folders(second, "zero_shot") == ["seed2"]  # included, since it is fine-tuned
    more = plan_of(walks, pretrain_seeds=(3,), seeds=(1,), methods=("scratch",))
    assert folders(more, "scratch") == ["seed7"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"seeds": (4,)},
            "seeds = 4 cannot be used: expected 1 to 3, as in the file; --pretrain-seeds adds",
        ),
        ({"seeds": (0,)}, "seeds = 0 cannot be used"),
        ({"pretrain_seeds": (0,)}, "pretrain_seeds = .* whole numbers from 1"),
        ({"pretrain_seeds": (1, 1)}, "each of them once"),
        ({"seeds": (9,), "methods": ("other",)}, "seeds that one of the methods has"),
    ],
)
def test_bad_requests_are_one_sentence(walks, request_, message):
    with pytest.raises(ConfigError, match=message):
        plan_of(walks, **request_)
    with pytest.raises(ConfigError, match=r"--pretrain-seeds = \[1\] .* expected none, as every"):
        plan_of("demo", pretrain_seeds=(1,))


def compare(plan):
    """The fields in which scratch differs from fine-tuning, with both values."""
    tuned = next(cell for cell in plan.cells if cell.phase == "finetune")
    scratch = next(cell for cell in plan.cells if cell.arm.name == "scratch" and cell.seed == tuned.seed)
    assert tuned.evaluation == scratch.evaluation
    assert tuned.protocol_steps == scratch.protocol_steps
    a, b = flat(to_json(tuned.config)), flat(to_json(scratch.config))
    return {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}


def test_the_panels_agents_differ_in_their_weights_alone():
    one = {"tasks": ("boxing",), "seeds": (1,), "pretrain_seeds": (1,)}
    apart = {
        "phase": ("finetune", "train"),
        "warmup_steps": (20_000, 1600),  # fine-tuning reads finetune.warmup_steps, which is 1600
    }
    plan = plan_of("atari-panel", **one)
    assert compare(plan) == apart
    end = {"learner.epsilon_start": (1.0, 0.05)}  # fine-tuning then begins at the end of the schedule
    assert compare(plan_of("atari-panel", changes={"finetune.noise": "end"}, **one)) == {**apart, **end}
    assert {cell.config.log.keep_replay for cell in plan.cells} == {False}
    assert {cell.config.finetune.warmup_steps for cell in plan.cells} == {1600}
    [note] = plan.notes
    assert note == (
        "from scratch has no counterpart of what fine-tuned has: finetune.warmup_actions = 'policy', "
        "finetune.adapt = True"
    )
    # Whatever is changed for fine-tuning holds from scratch, too.
    changes = {
        "finetune.noise": "restart", "finetune.warmup_actions": "random", "finetune.warmup_steps": 20_000,
        "finetune.updates_per_step": 0.5, "finetune.learning_rate": 3e-4, "finetune.steps": 50_000,
        "learner.n_step": 3, "share_encoder": "stack", "representation.auxiliary": True,
        "representation.encoder.activation": "relu", "representation.encoder.spectral_norm_iterations": 0,
        "augment.shift_pixels": 2, "replay.capacity_steps": 50_000, "reward_scale": 2.0,
        "finetune.adapt": False,
    }  # fmt: skip
    plan = plan_of("atari-panel", changes=changes, **one)
    assert compare(plan) == {"phase": ("finetune", "train")}
    scratch = next(cell.config for cell in plan.cells if cell.phase == "train")
    assert (scratch.updates_per_step, scratch.learner.learning_rate, scratch.steps) == (0.5, 3e-4, 50_000)
    assert (scratch.learner.n_step, scratch.representation.auxiliary) == (3, True)
    assert not plan.notes
    # Only what names the phase changes it alone.
    plan = plan_of("atari-panel", changes={"train.steps": "20k", "train.learner.n_step": 7}, **one)
    assert compare(plan) == {
        **apart,
        "steps": (100_000, 20_000),
        "learner.n_step": (5, 7),
    }


def test_what_adapts_pretrained_weights_is_named():
    equivalent = {"steps", "updates_per_step", "warmup_steps", "learning_rate", "noise"}
    assert equivalent | {*ADAPTATION} == {field.name for field in dataclasses.fields(FinetuneConfig)}


def test_lists_of_seeds():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", action=ReadSeeds, nargs="+", default=[2])
    assert parser.parse_args(["--seeds", "1..3", "7", "9,8", "4..4"]).seeds == [1, 2, 3, 7, 9, 8, 4]
    assert parser.parse_args([]).seeds == [2]


@pytest.mark.parametrize("text", ["1..", "one", "1..999999999", "3..1", "1,2,1", "-1..2"])
def test_bad_lists_of_seeds_are_answered_with_a_sentence(text):
    with pytest.raises(ConfigError, match=f"--seeds '{text}' cannot be used: expected whole numbers from 0"):
        read_seeds(text, "--seeds")
