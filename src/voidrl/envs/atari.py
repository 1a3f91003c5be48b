"""Atari games on ALE's native vector environment: `atari/ms_pacman`. Does not import torch.

Each step returns one frame of 84 × 84 gray pixels; the replay stacks them. docs/environments/atari.md lists
the differences from other setups, and the reasons.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from voidrl.config import AtariConfig, EnvConfig, update
from voidrl.envs.coverage import StateCounter
from voidrl.envs.ids import atari_game, parse_id
from voidrl.envs.ram import FRAME_SKIP, Shadows, addresses_of, digests, ram_variables
from voidrl.envs.suites.atari import GAMES, find_game
from voidrl.envs.vector import Envs, StepResult
from voidrl.envs.workers import count_workers
from voidrl.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

FRAMES_PER_SECOND = 60  # of the console


class AtariEnvs(Envs):
    """N copies of a game. In training a lost life terminates, though the game continues; rewards are clipped.

    ALE does neither here: its `episodic_life` resets the whole game, and its clipping loses the score.

    Args:
        vector: The games.
        config: Their config.
        rom: The name of the game in ALE.
        life_loss: Whether a lost life terminates.
        clips: Whether rewards are clipped to [−1, 1].
        color: A second, colored game with the seed and the actions of game 0, for `render`.
        shadows: Starts the emulators that repeat the games, if states are counted or the true state is known.
        true_state: Whether `true_state` is available.
    """

    vector: AtariVectorEnv
    frames_per_step = FRAME_SKIP
    _picture: np.ndarray | None = None
    _shadows: Shadows | None = None
    _counter: StateCounter | None = None
    _uncounted: np.ndarray | None = None  # (N,) which games' states of the last step are to be counted

    def __init__(
        self,
        vector: AtariVectorEnv,
        config: EnvConfig,
        rom: str,
        *,
        life_loss: bool,
        clips: bool,
        color: AtariVectorEnv | None,
        shadows: partial[Shadows] | None,
        true_state: bool,
    ) -> None:
        self._color = color
        super().__init__(vector, config, true_state=true_state)
        self.game = rom if rom in GAMES else None
        self._life_loss, self._clips, self._start_shadows = life_loss, clips, shadows
        self._lives = np.zeros(self.num_envs, np.int32)
        if config.count_states:
            self._measures = addresses_of(rom)
            self._counter = StateCounter(self._measures)
        if true_state:
            variables = ram_variables(rom)
            self._variables, self._addresses = tuple(variables), [*variables.values()]

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new games; game i draws its number of no-ops with seed + i."""
        frames, info = super().reset(seed)
        self._lives = info["lives"]
        if self._color is not None:
            self._picture = self._color.reset(seed=seed)[0][0, -1]
        if self._start_shadows is not None:
            if self._shadows is None:  # not earlier: a mere probe starts no processes
                self._shadows = self._start_shadows()
            self._count()
            self._shadows.reset(seed, info["episode_frame_number"])
            self._read_ram()
        return frames, info

    def send(self, action: np.ndarray) -> None:
        """Start one step of each game in ALE's threads."""
        assert 0 <= action.min() <= action.max() < self.spec.num_actions, "ALE hangs on an invalid action"
        self._sent = action
        self._guarded(lambda: self.vector.send(action))
        if self._color is not None:
            self._color.send(action[:1])

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """Wait for the results of the step, which the shadows then repeat."""
        frames, score, terminated, truncated, info = self._guarded(self.vector.recv)
        score, fresh, ended = score.astype(np.float32), self._resets, (terminated | truncated)
        if self._color is not None:
            self._picture = self._color.recv()[0][0, -1]
        died = (info["lives"] < self._lives) & ~fresh
        self._lives, self._resets = info["lives"], ended & ~fresh
        if self._shadows is not None:
            self._count()
            self._shadows.step(self._sent, fresh, info["episode_frame_number"], self._lives, score)
            self._uncounted = ~fresh if counted is None else counted & ~fresh
            self._read_ram()
        reward = np.clip(score, -1, 1) if self._clips else score
        if self._life_loss:
            terminated = terminated | died
        return StepResult(frames, reward, terminated, truncated, info, ended, score)

    @property
    def counter(self) -> StateCounter | None:
        """The counter of visited states."""
        self._count()
        return self._counter

    def _count(self) -> None:
        """Count the states of the last step, for which the shadows had the time of one step."""
        if self._counter is not None and self._shadows is not None and self._uncounted is not None:
            memories = self._shadows.ram()[self._uncounted]
            for measure, addresses in self._measures.items():
                self._counter.add(measure, digests(memories[:, addresses]))
        self._uncounted = None

    def _read_state(self, info: dict[str, Any]) -> None:
        """Do nothing: `reset` and `recv` read the emulators."""

    def _read_ram(self) -> None:
        if self._tracks_state and self._shadows is not None:
            self._state = self._shadows.ram()[:, self._addresses].astype(np.float64)

    @property
    def steps_per_second(self) -> float:
        """Agent steps per second of the game."""
        return FRAMES_PER_SECOND / FRAME_SKIP

    def render(self) -> np.ndarray:
        """The current color picture of game 0, (210, 160, 3): the maximum of the last two frames."""
        assert self._picture is not None, "created without a `render_height`, or not reset yet"
        return self._picture

    def close(self) -> None:
        """End the games and their shadows."""
        for extra in (self._color, self._shadows):
            if extra is not None:
                extra.close()
        super().close()


def make_atari(
    config: EnvConfig,
    num_envs: int,
    *,
    evaluation: bool,
    pretraining: bool = False,
    render: bool = False,
    true_state: bool = False,
) -> AtariEnvs:
    """Create N copies of the game in the id."""
    if config.backend not in ("auto", "native"):
        raise ConfigError(
            f"env.backend = {config.backend!r} cannot be used with environment {config.id!r}, which ALE "
            f"steps natively: use 'auto'"
        )
    try:
        import ale_py
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv
    except ImportError:
        raise MissingExtraError("ale-py", "atari", f"environment {config.id!r}") from None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    rom = find_game(atari_game(config.id) or "", roms.get_all_rom_ids())
    path = str(roms.get_rom_path(rom))
    if ale_py.ALEInterface.isSupportedROM(path) is None:  # loading it would kill the process
        raise ConfigError(f"environment {config.id!r} cannot be made: ALE has the game but cannot play it")
    rules = game_rules(config)
    make = partial(
        AtariVectorEnv,
        rom,
        stack_num=1,
        repeat_action_probability=rules.sticky,
        full_action_space=rules.full_actions,
        noop_max=rules.noop_max + 1,  # ALE's bound is exclusive
        max_num_frames_per_episode=rules.max_frames,
        use_fire_reset=False,
        reward_clipping=False,
    )
    color = None
    if render:
        # With the seed of game 0, a second game is identical, even with sticky actions.
        console = ale_py.ALEInterface()
        console.loadROM(path)
        height, width = console.getScreenDims()
        color = make(1, img_height=height, img_width=width, grayscale=False, num_threads=1)
    life_loss = rules.life_loss == "always" or (rules.life_loss == "task" and not pretraining)
    vector = make(num_envs, num_threads=count_workers(num_envs))  # ALE would take all cores of the machine
    shadows = None
    if config.count_states or true_state:
        shadows = partial(
            Shadows, rom, num_envs, config.timeout_s, full_actions=rules.full_actions, sticky=rules.sticky
        )
    return AtariEnvs(
        vector,
        config,
        rom,
        life_loss=life_loss and not evaluation,
        clips=rules.clip_rewards and not evaluation,
        color=color,
        shadows=shadows,
        true_state=true_state,
    )


def game_rules(config: EnvConfig) -> AtariConfig:
    """The rules of `env.atari`, overridden by the id's query, whose options are its fields."""
    try:
        return update(config.atari, parse_id(config.id)[1])
    except ConfigError as error:
        raise ConfigError(f"environment {config.id!r} cannot be made: {error}") from None
