"""video."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from voidrl.cli.options import add_player_options, load_agent, make_parser
from voidrl.system.files import user_path
from voidrl.system.terminal.output import say

if TYPE_CHECKING:
    from voidrl.agent import Agent
    from voidrl.report.videos.video import Recording

FIRST_MINUTE_S = 60.0  # of one episode, shown by default


def video(argv: list[str]) -> None:
    """Record an agent's play as an MP4: `voidrl video RUN`."""
    parser = make_parser("video", video.__doc__)
    add = parser.add_argument
    runs_help = "the folder of a run, a checkpoint or a saved agent; several are shown side by side"
    add("runs", nargs="+", metavar="RUN", help=runs_help)
    out_help = "by default in the folder videos/ of the run, or here for several runs"
    add("-o", "--out", metavar="FILE.mp4", help=out_help)
    add("--episodes", help="number of episodes (default: one, or its first minute)")
    add("--seconds", type=float, help="length of the video, over as many episodes as it takes")
    add("--untrained", action="store_true", help="also show the first agent before training")
    add("--fps", type=float, help="steps shown per second (default: real time of the environment)")
    add("--height", type=int, default=420, help="height of each picture in pixels (default: 420)")
    add("--plain", action="store_true", help="pictures alone, without text above them")
    add_player_options(parser)
    options = parser.parse_args(argv)
    from voidrl.report.videos import mp4
    from voidrl.report.videos.video import label_of, record, untrained, write_video
    from voidrl.system.units import parse_count

    episodes = None if options.episodes is None else parse_count(options.episodes, "episodes")
    seconds = options.seconds
    if episodes is None and seconds is None:
        episodes, seconds = 1, FIRST_MINUTE_S
    mp4.find_ffmpeg()  # a missing ffmpeg is reported before anything is played
    agents = [load_agent(options, run, options.device) for run in options.runs]
    target = options.out or default_path(options.runs, agents[0], options.env, options.seed)
    target = user_path(target)
    mp4.prepare_target(target)
    shown = [(label_of(agent), agent) for agent in agents]
    if options.untrained:
        shown.insert(0, ("untrained", untrained(agents[0])))
    with ExitStack() as stack:
        recordings: list[Recording] = []
        for label, agent in shown:
            say(f"{label}: playing {options.env or agent.config.env.id}")
            how = {name: getattr(options, name) for name in ("env", "seed", "epsilon", "fps", "height")}
            how |= {"episodes": episodes, "seconds": seconds, "deterministic": not options.stochastic}
            recordings.append(stack.enter_context(record(agent, label=label, **how)))
        write_video(recordings, target, height=options.height, labels=not options.plain)
        for recording in recordings:
            print(_summary(recording, asked=options.episodes is not None or options.seconds is not None))
        print(target)


def _summary(recording: Recording, *, asked: bool) -> str:
    """The result in one line."""
    episodes = zip(recording.returns, recording.lengths, strict=True)
    whole = [f"return {score:g} in {steps} steps" for score, steps in episodes]
    last = recording.moments[-1]
    if len(whole) < last.episode:
        hint = "" if asked else "; --episodes 1 shows all of it"
        whole.append(f"return {last.score:g} in the first {last.step} steps of an episode{hint}")
    if not recording.rewarded:
        whole = [f"{last.step} steps, which nothing rewards"]
    return f"{recording.label}: {'; '.join(whole)}"


def default_path(runs: list[str], agent: Agent, env: str | None, seed: int) -> Path:
    """RUN/videos/ENV_step16000_s0.mp4; otherwise, and for several runs, a file in this folder."""
    from voidrl.errors import RunFolderError
    from voidrl.runs.folder import RunFolder

    names = [user_path(run).absolute().name for run in runs]
    if len(names) > 1:
        more = f"+{len(names) - 3}_more" if len(names) > 3 else ""
        return Path("+".join(names[:3]) + f"{more}.mp4")
    place = re.sub(r"[^\w.-]+", "-", (env or agent.config.env.id).partition("?")[0].rpartition("/")[2])
    try:
        return RunFolder.open(runs[0]).path / "videos" / f"{place}_step{agent.steps}_s{seed}.mp4"
    except RunFolderError:
        return Path(f"{names[0]}.mp4")
