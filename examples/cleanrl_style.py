"""DQN in one file, in the style of CleanRL, that drives a car up a mountain with APT's reward alone.

`particle_reward` and its running mean are all it needs from voidrl: three lines of the loop below. Rewarded
for novelty, the car learns to swing and reaches the flag. Prints how many states it has visited:

    python examples/cleanrl_style.py                       # APT's reward alone
    python examples/cleanrl_style.py --intrinsic-scale 0   # no reward at all
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from voidrl.entropy import RunningMean, particle_reward

parser = argparse.ArgumentParser()
parser.add_argument("--intrinsic-scale", type=float, default=1.0, help="weight of APT's reward")
parser.add_argument("--total-steps", type=int, default=6000)
args = parser.parse_args()

rng = np.random.default_rng(1)
torch.manual_seed(1)
# Distances need all coordinates on one scale.
env = gym.wrappers.RescaleObservation(gym.make("MountainCar-v0"), np.float32(-1), np.float32(1))
network = lambda: nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))  # noqa: E731
q_network, target_network = network(), network()
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), 2e-3)
memory = []  # of (obs, action, next_obs, terminated)
running_mean, bins, goals = RunningMean(), set(), 0

obs, _ = env.reset(seed=1)
for step in range(args.total_steps):
    with torch.no_grad():
        greedy = int(q_network(torch.from_numpy(obs)).argmax())
    action = int(rng.integers(3)) if step < 500 or rng.random() < 0.05 else greedy
    next_obs, _, terminated, truncated, _ = env.step(action)
    memory.append((obs, action, next_obs, float(terminated)))
    bins.add(tuple(((next_obs + 1) * 10).astype(int)))
    goals += terminated
    obs = env.reset()[0] if terminated or truncated else next_obs
    if step < 500 or step % 4:
        continue
    batch = zip(*(memory[i] for i in rng.integers(len(memory), size=128)), strict=True)
    before, taken, after, ended = (torch.from_numpy(np.array(column)) for column in batch)
    with torch.no_grad():
        reward = particle_reward(after, k=5)  # how far each state is from its neighbors in the batch
        running_mean.update(reward)
        reward = args.intrinsic_scale * running_mean(reward)  # about 1
        target = reward + 0.98 * (1 - ended.float()) * target_network(after).max(dim=1).values
    loss = F.mse_loss(q_network(before).gather(1, taken[:, None]).squeeze(1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for slow, online in zip(target_network.parameters(), q_network.parameters(), strict=True):
        slow.data.lerp_(online.data, 0.04)
print(f"{len(bins)} places of 20 × 20 seen in {args.total_steps} steps, goal reached {goals} times")
