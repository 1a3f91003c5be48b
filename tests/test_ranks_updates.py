"""What ranks exchange in an update: together they do what one process does with the whole batch."""

from types import SimpleNamespace

import pytest
import torch
from helpers import DISCRETE, PIXELS, fill_replay, make_agent, points, small_method
from rank_updates import CASES, CHECKS, DEFAULT, QUIET, group_of_one, run, run_ranks

from voidrl import ranks
from voidrl.agent.trainers import Pieces, check_ranks
from voidrl.config import registry
from voidrl.engine.engine import Engine
from voidrl.engine.mode import pick_mode
from voidrl.errors import ConfigError
from voidrl.methods.base import Method
from voidrl.representations.simclr import nt_xent
from voidrl.training.build import build_config, require_fitting

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
    """What each of two ranks found, by case."""
    return run_ranks(tmp_path_factory.mktemp("ranks"), (*DEFAULT, *CHECKS), 2)


@pytest.mark.parametrize("case", DEFAULT)
def test_two_ranks_with_half_a_batch_update_like_one_with_all_of_it(case, two_ranks):
    assert_same_update(run(case), two_ranks[0][case])
    assert all(torch.equal(value, two_ranks[1][case][name]) for name, value in two_ranks[0][case].items())


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_every_method_and_representation_that_splits_updates_like_one_process(size, tmp_path):
    found = run_ranks(tmp_path, CASES, size)
    for case in CASES:
        assert_same_update(run(case), found[0][case])
        for other in found[1:]:
            assert all(torch.equal(value, other[case][name]) for name, value in found[0][case].items()), case


def test_moments_are_those_of_all_parts_also_where_one_is_empty(two_ranks):
    for name, expected in CHECKS["moments"]().items():
        for found in two_ranks:
            torch.testing.assert_close(found["moments"][name], expected, rtol=1e-12, atol=0)


def test_rewards_among_the_particles_of_all_ranks_are_exactly_those_of_one_process(two_ranks):
    one = CHECKS["rewards"]()
    together = {name: torch.cat([found["rewards"][name] for found in two_ranks]) for name in one}
    for name in ("apt", "itself counts", "re3"):
        torch.testing.assert_close(together[name], one[name], rtol=1e-6, atol=0)
    assert not torch.allclose(together["own part"], one["own part"])  # half as many are farther apart


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


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_contrast_over_parts_is_the_contrast_over_all(decoupled):
    """Loss and gradient, for two views that differ: each state is contrasted with all but itself."""
    h = points(2, 6, 4).requires_grad_()  # two views of six states
    whole, _ = nt_xent(h.flatten(0, 1), 0.5, decoupled=decoupled)
    parts = [
        nt_xent(h[:, i : i + 2].flatten(0, 1), 0.5, decoupled=decoupled, everyone=h.flatten(0, 1), first=i)
        for i in (0, 2, 4)
    ]
    together = torch.stack([loss for loss, _ in parts]).mean()
    torch.testing.assert_close(together, whole)
    torch.testing.assert_close(*(torch.autograd.grad(loss, h)[0] for loss in (together, whole)))


@pytest.mark.parametrize("case", ["apt", "simclr", "popart"])
def test_a_group_of_one_that_exchanges_changes_nothing(case):
    alone = run(case)
    with group_of_one():
        assert ranks.current().is_distributed
        assert_same_update(alone, run(case))


@pytest.mark.slow
def test_an_exchange_inside_compiled_code_gives_the_same():
    agent = make_agent(PIXELS, representation="simclr", **QUIET)
    views = fill_replay(PIXELS).observations(torch.arange(8))
    with group_of_one():
        loss, _ = agent.representation.contrast(views)
        compiled, _ = torch.compile(agent.representation.contrast, backend="aot_eager")(views)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled, loss)


def test_without_a_group_nothing_is_exchanged_or_copied():
    x = points(3, 2)
    assert ranks.all_gather(x) is x
    assert ranks.sum_(x) is x
    assert ranks.average(x) is x
    assert ranks.current().share_of(7) == 7
    rewards = [
        make_agent(method__pool=pool).update(fill_replay(seed=3))["reward_mean"].isfinite()
        for pool in (0, "all_ranks")
    ]
    assert all(rewards)


# What is refused


class Own(Method):
    """A custom method that says nothing about ranks."""

    def reward(self, batch, latents):
        return batch.reward


def refusal(size, spec=DISCRETE, **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    config = build_config(spec, [changes])
    kinds = ("representation", "method", "learner")
    pieces = Pieces(*(registry.find(kind, getattr(config, kind).name) for kind in kinds))
    with pytest.raises(ConfigError) as error:
        check_ranks(config, pieces, size)
    check_ranks(config, pieces, 1)
    return str(error.value)


@pytest.mark.parametrize("method", ["cbb", "maxent", "ngu", "mepol", Own])
def test_a_method_whose_state_would_differ_between_ranks_is_refused(method):
    said = refusal(4, method=method)
    name = method if isinstance(method, str) else registry.name_of("method", method)
    assert said.startswith(f"method {name!r} cannot be used on 4 ranks: ")
    assert "use 1 rank, or a method such as apt or rnd" in said
    assert ("set splits_over_ranks = True" in said) == (method is Own)


REFUSED = {
    "batch": (
        {"learner__batch_size": 32},
        "learner.batch_size = 32 cannot be used on 3 ranks: expected a multiple of 3, since each takes the "
        "same part of the batch; use 30",
    ),
    "representation": (
        {"learner__batch_size": 30, "method": "icm", "representation__batch_size": 64},
        "representation.batch_size = 64 cannot be used on 3 ranks",
    ),
    "neighbors": (
        {"learner__batch_size": 9, "method__k": 3},
        "method.k = 3 cannot be used with learner.batch_size = 9 on 3 ranks and method.pool = 0: a state has "
        "the 2 others of its rank's part to search; use method.pool = 'all_ranks', or a larger batch",
    ),
    "skills": (
        {"learner__batch_size": 9, "phase": "finetune", "method": "diayn"},
        "an agent of method 'diayn' cannot be fine-tuned on 3 ranks",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_ranks_cannot_divide_is_refused_in_one_sentence(case):
    changes, sentence = REFUSED[case]
    assert refusal(3, **changes).startswith(sentence)


def test_ranks_of_torchrun_are_refused_before_a_run_begins(monkeypatch):
    config = build_config(DISCRETE, [{"method": "cbb"}])
    probed = SimpleNamespace(spec=DISCRETE, factory=None)
    require_fitting(probed, config)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="method 'cbb' cannot be used on 2 ranks"):
        require_fitting(probed, config)


@pytest.mark.parametrize("pool", [-1, "both", None])
def test_a_pool_that_is_none_is_refused(pool):
    with pytest.raises(
        ConfigError, match=r"method\.pool = .* cannot be used: expected|pool = -1 cannot be used"
    ):
        make_agent(method__pool=pool)


# The engine


def on_cuda(engine):
    device = torch.device("cuda", 0)
    learner = SimpleNamespace(on_policy=False)
    config = SimpleNamespace(engine=engine, learner=learner, planned_updates=1000)
    return SimpleNamespace(device=device, config=config, learns=True)


@pytest.mark.parametrize(("backend", "mode"), [("gloo", "eager"), ("nccl", "graph")])
def test_updates_are_captured_only_if_the_exchange_is(backend, mode, monkeypatch):
    monkeypatch.setattr(ranks.group, "_current", ranks.ProcessGroup(size=2, backend=backend))
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


def test_an_update_of_ranks_can_be_undone():
    """As the engine does it before compiled updates: with exchanges as without."""
    agent, replay = make_agent(**small_options()), fill_replay()
    engine = Engine(agent, replay, print)
    before = {name: value.clone() for name, value in agent.tensors().items()}
    with group_of_one(), engine._undone():
        engine._run(0)
    assert all(torch.equal(value, before[name]) for name, value in agent.tensors().items())


def small_options():
    return {"method": small_method("apt", pool="all_ranks"), "intrinsic_normalization": "scale"}
