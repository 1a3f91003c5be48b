"""Environments written by others, which voidrl takes as they are: what `test_foreign.py` runs, one by one."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class World:
    """One environment, and what to install for it."""

    env: str
    """As given to `voidrl.pretrain`."""
    package: str
    """What pip installs; `gymnasium` needs nothing more."""
    config: dict[str, Any] = field(default_factory=dict)
    """Changes that the environment needs, beyond the small networks of the test."""
    limit: int = 30
    """Steps of an episode, where the environment's own episodes take too long for a test; 0 leaves them."""
    venv: str = "foreign"
    """The requirements that hold the package: `lock`, `foreign` or `robotics`."""
    quick: bool = False
    """Whether `make test` runs it, too."""
    note: str = ""
    """Why it needs its changes, for the table."""

    @property
    def name(self) -> str:
        """The environment without its options, as the table and the tests name it."""
        return self.env.partition("?")[0]


def wrapped(*wrappers):
    return {"env.wrappers": [*wrappers]}


LEAVES_BOUNDS, NO_TEXT = "leaves the bounds of its own space", "the mission, a text, is left out"
ONE_EMULATOR = "one emulator per process: more than one environment needs `env.backend = async`"
SEQUENCE = "a Sequence, of which its own wrapper makes a vector"
SEVERAL_REWARDS = "rewards of several objectives"
UNBOUNDED = {"env.check_bounds": False}
SCALAR_REWARD = wrapped("foreign_factories:FirstObjective")
IMAGES = wrapped("minigrid.wrappers:RGBImgPartialObsWrapper", "minigrid.wrappers:ImgObsWrapper")
WAYPOINTS = wrapped("PyFlyt.gym_envs:FlattenWaypointEnv?context_length=1")

GYMNASIUM = [
    World("CartPole-v1", "gymnasium", venv="lock"),
    World("Acrobot-v1", "gymnasium", venv="lock"),
    World("MountainCar-v0", "gymnasium", venv="lock"),
    World("Pendulum-v1", "gymnasium", venv="lock", quick=True),
    World("MountainCarContinuous-v0", "gymnasium", venv="lock"),
    World("FrozenLake-v1", "gymnasium", venv="lock"),
    World("CliffWalking-v1", "gymnasium", venv="lock"),
    World("Taxi-v4", "gymnasium", venv="lock", quick=True, note="masks actions through `info`"),
    World("Blackjack-v1", "gymnasium", venv="lock", limit=0, quick=True),
    World("HalfCheetah-v5", "gymnasium[mujoco]", venv="lock"),
    World("Ant-v5", "gymnasium[mujoco]", venv="lock"),
    World("Humanoid-v5", "gymnasium[mujoco]", venv="lock"),
    World("ALE/Pong-v5", "ale-py", venv="lock", note="the raw game, without the wrappers of `atari/pong`"),
    World("ALE/Breakout-v5?obs_type=ram", "ale-py", venv="lock"),
    World("LunarLander-v3", "gymnasium[box2d]", UNBOUNDED, note=LEAVES_BOUNDS),
    World("LunarLander-v3?continuous=True", "gymnasium[box2d]", UNBOUNDED, note=LEAVES_BOUNDS),
    World("BipedalWalker-v3", "gymnasium[box2d]", UNBOUNDED),
    World("CarRacing-v3", "gymnasium[box2d]", limit=15),
]
GRIDS = [
    World("MiniGrid-DoorKey-8x8-v0", "minigrid", venv="lock", quick=True, note=NO_TEXT),
    World("MiniGrid-Empty-5x5-v0", "minigrid", wrapped("minigrid.wrappers:FullyObsWrapper"), venv="lock"),
    World("MiniGrid-FourRooms-v0", "minigrid", IMAGES, venv="lock"),
    World("BabyAI-GoToLocal-v0", "minigrid", venv="lock"),
    World("MinAtar/Breakout-v1", "minatar"),
    World("MinAtar/SpaceInvaders-v1", "minatar"),
    World("foreign_factories:Crafter", "crafter", note="written for the old Gym"),
    World("NetHackScore-v0", "nle", {"env.keys": ["glyphs", "blstats"]}),
    World("tetris_gymnasium/Tetris", "tetris-gymnasium"),
    World("popgym:popgym-RepeatPreviousEasy-v0", "popgym"),
    World("popgym:popgym-BattleshipEasy-v0", "popgym"),
]
SCREENS = [
    World("FlappyBird-v0", "flappy-bird-gymnasium", UNBOUNDED, note=LEAVES_BOUNDS),
    World("MiniWorld-Hallway-v0", "miniworld"),
    World("VizdoomBasic-v1", "vizdoom"),
    World("stable_retro:make?game=Airstriker-Genesis-v0", "stable-retro", note=ONE_EMULATOR),
]
DRIVING = [
    World("highway-fast-v0", "highway-env", limit=8),
    World("parking-v0", "highway-env", limit=15),
    World("racetrack-v1", "highway-env", limit=8),
]
ROBOTS = [
    World("gym_pusht/PushT-v0", "gym-pusht"),
    World("PandaReach-v3", "panda-gym"),
    World("PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v1", "PyFlyt"),
    World("PyFlyt.gym_envs:PyFlyt/QuadX-Waypoints-v1", "PyFlyt", WAYPOINTS, note=SEQUENCE),
    World("FetchReach-v4", "gymnasium-robotics", venv="robotics"),
    World("HandReach-v3", "gymnasium-robotics", venv="robotics"),
    World("AdroitHandDoor-v1", "gymnasium-robotics", venv="robotics"),
    World("PointMaze_UMaze-v3", "gymnasium-robotics", venv="robotics"),
    World("AntMaze_UMaze-v5", "gymnasium-robotics", venv="robotics"),
    World("FrankaKitchen-v1", "gymnasium-robotics", venv="robotics"),
    World("Meta-World/MT1?env_name=reach-v3", "metaworld", UNBOUNDED, venv="robotics", note=LEAVES_BOUNDS),
]
OTHER_INTERFACES = [
    World("mo_gymnasium:deep-sea-treasure-v0", "mo-gymnasium", SCALAR_REWARD, note=SEVERAL_REWARDS),
    World("gym_anytrading:stocks-v0", "gym-anytrading"),
    World("shimmy:dm_control/cartpole-balance-v0", "shimmy"),
    World("foreign_factories:bsuite_env?name=catch/0", "bsuite", note="through shimmy"),
    World("foreign_factories:jumanji_env?name=Snake-v1", "jumanji", note="masks actions in its observation"),
    World("foreign_factories:gymnax_env?name=Breakout-MinAtar", "gymnax"),
]
WORLDS = [*GYMNASIUM, *GRIDS, *SCREENS, *DRIVING, *ROBOTS, *OTHER_INTERFACES]
