"""What ranks exchange in an update: together they do what one process does with the whole batch."""

from types import SimpleNamespace

import pytest
import torch
from helpers import CONTINUOUS, points
from rank_updates import CASES, CHECKS, group_of_one, run, run_ranks

from voidrl import dist
from voidrl.agent.combinations import check_ranks
from voidrl.engine.mode import pick_mode
from voidrl.errors import ConfigError
from voidrl.representations.simclr import nt_xent
from voidrl.training.build import build_config

# Sums in another order differ by a few units of 2⁻²⁴ of their largest terms. Adam divides a gradient by its
# own size, so weights are compared only where it is more than rounding: the bias behind φ(s') − φ(s), say,
# has none at all, and moves by chance.
LARGEST_ERROR, ROUNDING = 5e-5, 1e-4


def assert_same_update(one, found):
    assert one.keys() == found.keys()
    for name, expected in one.items():
        scale = expected.abs().max() if expected.numel() and expected.is_floating_point() else 0
        compared = torch.ones_like(expected, dtype=torch.bool)
        if (gradient := one.get(f"grad {name}")) is not None:
            largest = max(value.abs().max() for key, value in one.items() if key.startswith("grad "))
            compared = gradient.abs() > ROUNDING * largest
        torch.testing.assert_close(
            found[name][compared],
            expected[compared],
            rtol=0,
            atol=LARGEST_ERROR * max(float(scale), 1.0) if scale == scale else LARGEST_ERROR,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The results of two ranks, by case."""
    return run_ranks(tmp_path_factory.mktemp("ranks"), (*CASES, *CHECKS), 2)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_with_half_a_batch_update_like_one_with_all_of_it(case, two_ranks):
    assert_same_update(run(case), two_ranks[0][case])
    assert all(torch.equal(value, two_ranks[1][case][name]) for name, value in two_ranks[0][case].items())


def test_moments_are_those_of_all_parts_also_where_one_is_empty(two_ranks):
    for name, expected in CHECKS["moments"]().items():
        for found in two_ranks:
            torch.testing.assert_close(found["moments"][name], expected, rtol=1e-12, atol=0)


def test_importance_weights_follow_the_probabilities_of_all_ranks(two_ranks):
    """Each rank draws as many from its own priorities; the least likely transition of all has weight 1."""
    found = [rank["priorities"] for rank in two_ranks]
    weight, chance = (torch.cat([rank[name] for rank in found]) for name in ("weight", "chance"))
    torch.testing.assert_close(weight, (chance.min() / chance).float())
    assert found[0]["chance"].min() != found[1]["chance"].min()
    assert found[0]["highest"] == found[1]["highest"] == 4 * 4 * 2**20


def test_the_first_rank_s_tensors_replace_those_of_the_others(two_ranks):
    for found in two_ranks:
        numbers = [found["first"][str(i)].flatten().tolist() for i in range(3)]
        assert numbers == [[1.0, 1.0], [0], [5.0, 5.0, 5.0]]


def test_ranks_with_transitions_of_their_own_keep_the_same_weights(two_ranks):
    """Random numbers, augmentations and transitions differ; what is trained by them does not."""
    one, other = (found["engine"] for found in two_ranks)
    assert one.pop("said") == other.pop("said")
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_contrast_over_parts_is_the_contrast_over_all():
    """Loss and gradient, for two views that differ: each state is contrasted with all but itself."""
    h = points(2, 6, 4).requires_grad_()  # two views of six states
    whole, _ = nt_xent(h.flatten(0, 1), 0.5)
    parts = [
        nt_xent(h[:, i : i + 2].flatten(0, 1), 0.5, everyone=h.flatten(0, 1), first=i) for i in (0, 2, 4)
    ]
    together = torch.stack([loss for loss, _ in parts]).mean()
    torch.testing.assert_close(together, whole)
    torch.testing.assert_close(*(torch.autograd.grad(loss, h)[0] for loss in (together, whole)))


@pytest.mark.parametrize("case", ["dqn", "simclr"])
def test_a_group_of_one_that_exchanges_changes_nothing(case):
    alone = run(case)
    with group_of_one():
        assert dist.current().is_distributed
        assert_same_update(alone, run(case))


REFUSED = {  # by what is refused
    "learner.batch_size = 32": {"learner.batch_size": 32},
    "representation.batch_size = 64": {"method": "icm", "representation.batch_size": 64},
    "env.num_envs = 2": {"env.num_envs": 2},
    "learner 'mepol'": {"method": "mepol"},
    "the visits of method 'cbb'": {"method": "cbb"},
    "fine-tuning of method 'diayn'": {"phase": "finetune", "method": "diayn"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_ranks_cannot_divide_is_refused(what):
    config = build_config(CONTINUOUS, [{"learner.batch_size": 9, "env.num_envs": 6} | REFUSED[what]])
    check_ranks(config, 1)
    with pytest.raises(ConfigError, match=f"^{what} cannot be used with 3 ranks: .*(use|one)"):
        check_ranks(config, 3)


# The engine


def on_cuda(engine):
    device = torch.device("cuda", 0)
    learner = SimpleNamespace(on_policy=False)
    planned = SimpleNamespace(planned_updates=1000)
    config = SimpleNamespace(engine=engine, learner=learner, effective=planned)
    return SimpleNamespace(device=device, config=config, learns=True)


@pytest.mark.parametrize(("backend", "mode"), [("gloo", "eager"), ("nccl", "graph")])
def test_updates_are_captured_only_if_the_exchange_is(backend, mode, monkeypatch):
    monkeypatch.setattr(dist, "_current", dist.ProcessGroup(size=2, backend=backend))
    said = []
    assert pick_mode(on_cuda("auto"), None, said.append) == mode
    if mode == "graph":
        assert said == ["engine: graph, since compiling pays from 200k updates on, and the run has 1k"]
        return
    assert said == [
        "engine: eager, since 2 ranks exchange gradients by gloo, which leaves the device (NCCL takes a GPU "
        "for each rank)"
    ]
    for engine in ("graph", "compile"):
        with pytest.raises(
            ConfigError, match=f"engine = '{engine}' cannot be used: 2 ranks exchange .* by gloo"
        ):
            pick_mode(on_cuda(engine), None, said.append)
