"""Masks of actions: what is forbidden is never taken or bootstrapped from, and networks do not see masks."""

import numpy as np
import pytest
import torch
from helpers import CPU, fill_replay, make_agent, packed, shake, small_method

from voidrl.agent.exploration import Explorer
from voidrl.config import EncoderConfig
from voidrl.nets import Encoder
from voidrl.nets.observations import action_mask, random_allowed, visible, visible_numbers
from voidrl.probing.play import _Driver
from voidrl.replay import Replay
from voidrl.representations.sgi import GOAL_DISCOUNT
from voidrl.types import EnvSpec

SPEC = EnvSpec((5,), False, 2, num_actions=3, raw_shape=(5,), masked=True)  # two numbers and a mask
PIXELS = EnvSpec((1, 7, 7), True, 1, num_actions=3, raw_shape=(7, 7, 1), num_values=3, masked=True)
MASKS = torch.tensor([[1.0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]])
ALLOWED = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=torch.bool)


def observations(masks, spec=SPEC, seed=0):
    """Observations whose newest frame has these masks, and whose older frames allow what it forbids."""
    n = len(masks)
    if spec.pixels:
        picture = np.random.default_rng(seed).integers(0, 256, (n, *spec.frame_shape), dtype=np.uint8)
        return torch.from_numpy(packed(picture, masks.numpy()))
    torch.manual_seed(seed)
    return torch.cat([torch.randn(n, 2), 1 - masks, torch.randn(n, 2), masks], 1)


@pytest.mark.parametrize("spec", [SPEC, PIXELS], ids=["vectors", "images"])
def test_the_newest_frame_says_what_is_allowed_and_nothing_allows_everything(spec):
    assert torch.equal(action_mask(observations(MASKS, spec), spec), ALLOWED)
    assert action_mask(torch.randn(2, 3), EnvSpec((3,), False, 1, num_actions=3)) is None


def test_networks_do_not_see_masks():
    obs = observations(MASKS)
    assert torch.equal(visible(obs, SPEC), obs[:, [0, 1, 5, 6]])
    assert visible_numbers(SPEC) == 4
    changed = observations(1 - MASKS)
    for method in ("apt", "rnd", "metra"):
        agent = make_agent(SPEC, method=small_method(method))
        assert torch.equal(agent.representation.encode(obs), agent.representation.encode(changed))
        assert torch.equal(agent.learner.encoder(obs), agent.learner.encoder(changed))
    assert make_agent(SPEC).representation.dim == 4
    assert make_agent(PIXELS).learner.encoder(observations(MASKS, PIXELS)).shape[1] == 8
    custom = EncoderConfig("test_custom_encoders:TinyMLP", feature_dim=0)
    assert Encoder(SPEC, custom).stack.layer.in_features == 4


def test_random_actions_are_uniform_over_the_allowed_ones():
    torch.manual_seed(0)
    mask = torch.tensor([1, 0, 1, 1, 0], dtype=torch.bool)
    counts = random_allowed(mask.expand(9000, -1)).bincount(minlength=5)
    assert counts[[1, 4]].sum() == 0
    chi_squared = ((counts[mask] - 3000).square() / 3000).sum()
    assert chi_squared < 13.8  # 2 degrees of freedom: 1 in 1000


LEARNERS = {
    "greedy": {"learner__epsilon_start": 0.0},
    "epsilon": {"learner__epsilon_start": 0.7},
    "target": {"learner__epsilon_start": 0.5, "learner__act_with": "target"},
    "rainbow": {"learner": {"name": "rainbow", "atoms": 5}},
    "aps": {"method": small_method("aps")},
    "random": {"method": "random"},
}


@pytest.mark.parametrize("spec", [SPEC, PIXELS], ids=["vectors", "images"])
@pytest.mark.parametrize("case", LEARNERS)
def test_a_forbidden_action_is_never_taken(case, spec):
    agent = make_agent(spec, **LEARNERS[case])
    shake(agent.learner.critic)
    agent.learner.target_critic.load_state_dict(agent.learner.critic.state_dict())
    obs = observations(MASKS, spec).repeat(250, *[1] * (len(spec.frame_shape)))
    allowed = ALLOWED.repeat(250, 1)
    skill = agent.new_skills(torch.zeros(1000, dtype=torch.int64))
    taken = [agent.choose(obs, skill, deterministic=False) for _ in range(10)]
    taken += [agent.choose(obs, skill, deterministic=True), agent.random_actions(obs)]
    explorer = Explorer.copy_of(agent, CPU)
    explorer.begin(1000)
    explorer.everywhere.fill_(True)
    taken.append(explorer.replace(taken[0], obs, skill))
    for actions in taken:
        assert allowed.gather(1, actions[:, None]).all()
    assert all((actions[1::4] == 1).all() for actions in taken)
    assert set(taken[-2][::4].tolist()) == {0, 2}  # both of the allowed ones come


# Online, the best of {0, 2} is 0, and of all it is 1; by the target alone they are 2 and 2. The third mask
# allows nothing, and so everything.
@pytest.mark.parametrize(
    ("double", "values"), [(True, [3.0, 20.0, 20.0, 20.0]), (False, [30.0, 20.0, 30.0, 30.0])]
)
def test_a_target_ignores_forbidden_actions(double, values):
    agent = make_agent(SPEC, phase="train", learner__double=double, learner__dueling=False)
    critics = {agent.learner.critic: [1.0, 2.0, 0.5], agent.learner.target_critic: [3.0, 20.0, 30.0]}
    for critic, fixed in critics.items():  # in every state
        critic.forward = lambda features, skill, q=fixed: torch.tensor([q]).repeat(len(features), 1)
    replay = fill_replay(SPEC)
    batch = replay.batch(replay.sample(4), 1, 0.9)
    batch = batch._replace(next_obs=observations(MASKS), discount=torch.full((4,), 0.5))
    target = agent.learner.target(batch, torch.ones(4))
    assert target.tolist() == [1 + 0.5 * value for value in values]


def test_the_goals_of_sgi_ignore_forbidden_actions():
    sgi = make_agent(SPEC, representation="sgi").representation
    obs = observations(MASKS)
    goal = torch.ones(4, *sgi.make_goals(sgi.spr.latent(obs)).shape[1:])
    sgi.head.forward = lambda latent, goal: torch.tensor([[1.0, 2.0, 0.5]]).repeat(4, 1)
    sgi.target_head.forward = lambda latent, goal: torch.tensor([[0.1, 0.2, 0.3]]).repeat(4, 1)
    near, latent = torch.zeros(4), sgi.spr.project(sgi.spr.latent(obs))
    targets = sgi._goal_targets(near, near, obs, latent, goal, torch.ones(4))
    assert targets.tolist() == pytest.approx([GOAL_DISCOUNT * v for v in (0.1, 0.2, 0.2, 0.2)])


@pytest.mark.parametrize("policy", ["random", "sticky"])
def test_random_play_keeps_to_the_allowed_actions(policy):
    driver = _Driver(policy, np.arange(4), SPEC, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for _ in range(60):
        masks = torch.from_numpy((rng.random((4, 3)) < 0.5).astype(np.float32))
        action = driver.act(observations(masks), np.zeros(4, bool))
        allowed = action_mask(observations(masks), SPEC).numpy()
        assert allowed[np.arange(4), action].all()


def test_a_corridor_with_masks_is_learned():
    """Five rooms in a row, seen one-hot. In each, one action leads on, one stays, the others are forbidden.

    Nothing is known of those, and a target that believed the network's guess would be arbitrary.
    """
    rooms, actions = 5, 6
    spec = EnvSpec((rooms + actions,), False, 1, num_actions=actions, masked=True)
    onward, stay = [1, 3, 2, 5], 0

    def frame(room):
        mask = np.zeros(actions)
        mask[[stay, onward[room] if room < rooms - 1 else stay]] = 1
        return np.concatenate([np.eye(rooms)[room], mask])[None].astype(np.float32)

    options = {"batch_size": 32, "learning_rate": 3e-3, "target_tau": 0.2, "discount": 0.7}
    agent = make_agent(spec, phase="train", learner=options)
    replay, room, no = Replay(spec, 1, 1000, 0, CPU, CPU), 0, np.zeros(1, bool)
    replay.reset(frame(0))
    for _ in range(150):
        action = agent.random_actions(replay.latest()).numpy()
        assert frame(room)[0, rooms + action[0]] == 1
        room += int(action[0] == onward[room])
        done = np.array([room == rooms - 1])
        replay.add(action, done.astype(float), done, no, frame(room), torch.zeros(1, 0))
        if done[0]:
            room = 0
            replay.add(action, np.zeros(1), no, no, frame(room), torch.zeros(1, 0))
    for _ in range(100):
        agent.update(replay)
    obs = torch.from_numpy(np.concatenate([frame(room) for room in range(rooms - 1)]))
    assert agent.choose(obs, torch.zeros(4, 0), deterministic=True).tolist() == onward
    q = agent.learner.values(agent.learner.critic(agent.learner.encoder(obs), torch.zeros(4, 0)))
    best = q.gather(1, torch.tensor(onward)[:, None])[:, 0]
    assert best.tolist() == pytest.approx([0.7**3, 0.7**2, 0.7, 1.0], abs=0.15)
