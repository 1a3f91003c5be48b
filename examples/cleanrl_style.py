"""DQN in one file, in the style of CleanRL, that drives a car up a mountain with APT's reward alone.

`particle_reward` and its running mean are all it needs from voidrl: three lines of the loop below. Rewarded
for novelty, the car learns to swing and reaches the flag. Prints how many states it has visited:

    python examples/cleanrl_style.py                       # APT's reward alone
    python examples/cleanrl_style.py --intrinsic-scale 0   # no reward at all
"""

import argparse
import dataclasses
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from voidrl.entropy import RunningMean, particle_reward


@dataclass
class Args:
    seed: int = 1
    """seed of everything random"""
    env_id: str = "MountainCar-v0"
    """an environment with bounded vector observations and discrete actions"""
    total_steps: int = 6000
    """environment steps"""
    learning_rate: float = 2e-3
    """learning rate of Adam"""
    gamma: float = 0.98
    """discount factor"""
    tau: float = 0.04
    """step of the target network toward the network at each update"""
    batch_size: int = 128
    """transitions per update, which are also the particles"""
    epsilon: float = 0.05
    """probability of a random action"""
    learning_starts: int = 500
    """random steps before the first update"""
    train_every: int = 4
    """steps between two updates"""
    intrinsic_scale: float = 1.0
    """weight of APT's reward"""
    extrinsic_scale: float = 0.0
    """weight of the environment's reward"""
    k: int = 5
    """number of neighbors in APT's reward"""


class QNetwork(nn.Module):
    def __init__(self, env: gym.Env) -> None:
        super().__init__()
        inputs, actions = env.observation_space.shape[0], int(env.action_space.n)
        layers = [nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions)]
        self.network = nn.Sequential(*layers)

    def forward(self, x):
        return self.network(x)


def main(args: Args) -> None:
    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are too small for more
    # Distances need all coordinates on one scale.
    env = gym.wrappers.RescaleObservation(gym.make(args.env_id), np.float32(-1), np.float32(1))
    q_network, target_network = QNetwork(env), QNetwork(env)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), args.learning_rate)

    obs, _ = env.reset(seed=args.seed)
    memory_obs = np.zeros((args.total_steps, *obs.shape), np.float32)
    memory_next_obs = np.zeros_like(memory_obs)
    memory_action = np.zeros(args.total_steps, np.int64)
    memory_reward, memory_terminated = np.zeros((2, args.total_steps), np.float32)
    intrinsic_scale = RunningMean()
    bins, goals = set(), 0

    for step in range(args.total_steps):
        if step < args.learning_starts or rng.random() < args.epsilon:
            action = int(rng.integers(env.action_space.n))
        else:
            with torch.no_grad():
                action = int(q_network(torch.from_numpy(obs)).argmax())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        memory_obs[step], memory_next_obs[step], memory_action[step] = obs, next_obs, action
        memory_reward[step], memory_terminated[step] = reward, terminated
        bins.add(tuple(((next_obs + 1) * 10).astype(int)))
        goals += terminated
        obs = env.reset()[0] if terminated or truncated else next_obs

        if step >= args.learning_starts and step % args.train_every == 0:
            index = rng.integers(step + 1, size=args.batch_size)
            before, after = torch.from_numpy(memory_obs[index]), torch.from_numpy(memory_next_obs[index])
            with torch.no_grad():
                # APT: how far each state is from its neighbors in the batch, normalized to about 1
                intrinsic = particle_reward(after, k=args.k)  # (B,)
                intrinsic_scale.update(intrinsic)
                rewards = args.intrinsic_scale * intrinsic_scale(intrinsic)
                rewards = rewards + args.extrinsic_scale * torch.from_numpy(memory_reward[index])
                alive = 1 - torch.from_numpy(memory_terminated[index])
                td_target = rewards + args.gamma * alive * target_network(after).max(dim=1).values
            taken = torch.from_numpy(memory_action[index])[:, None]
            loss = F.mse_loss(q_network(before).gather(1, taken).squeeze(1), td_target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for target, online in zip(target_network.parameters(), q_network.parameters(), strict=True):
                target.data.lerp_(online.data, args.tau)

    print(f"{len(bins)} places of 20 × 20 seen in {args.total_steps} steps, goal reached {goals} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(Args):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=type(field.default), default=field.default)
    main(Args(**vars(parser.parse_args())))
