"""Search two fields of APT in a maze with Optuna; trials that fall behind are stopped early.

Each trial pre-trains without rewards and is judged by the cells of the maze that it visited. The study lives
in an SQLite file: the same command continues it, also after an interruption. Needs `pip install optuna`.

    python examples/optuna_search.py [folder] [trials] [steps]
"""

import sys
from pathlib import Path

import optuna

import voidrl
from voidrl.training.callbacks import OptunaPruning

MAZE = "voidrl/PixelMaze-v0?size=13&loops=0.1&layout_seed=3&image_size=39"
METRIC = "coverage/cells"  # any name in metrics.jsonl


def objective(trial: optuna.Trial, folder: Path, steps: int) -> float:
    """One run; the median of earlier trials at the same step decides whether it may go on."""
    config = {
        "method.k": trial.suggest_int("method.k", 3, 30, log=True),
        "learner.learning_rate": trial.suggest_float("learner.learning_rate", 1e-5, 1e-2, log=True),
        "warmup_steps": steps // 4,
        "log.log_every_steps": steps // 8,  # each row is reported, and may end the trial
    }
    pruning = OptunaPruning(trial, METRIC)
    how = {"preset": "maze-demo", "config": config, "callbacks": [pruning], "seed": 1}
    voidrl.pretrain(MAZE, "apt", steps=steps, out=folder / f"trial-{trial.number}", **how)
    if pruning.pruned:  # the run has ended normally, with a checkpoint
        raise optuna.TrialPruned
    return pruning.value


def search(folder: Path, trials: int, steps: int) -> optuna.Study:
    """Run trials until the study has as many that ended."""
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{folder / 'study.db'}",
        study_name="apt-maze",
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=steps // 3),
    )
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))  # one seed would draw the same again
    ended = study.get_trials(states=[optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED])
    study.optimize(lambda trial: objective(trial, folder, steps), n_trials=max(0, trials - len(ended)))
    return study


if __name__ == "__main__":
    words = dict(enumerate(sys.argv))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = search(Path(words.get(1, "runs/optuna")), int(words.get(2, 20)), int(words.get(3, 4000)))
    for trial in study.trials:
        print(f"trial {trial.number}: {trial.state.name.lower()}, {trial.value} cells, {trial.params}")
    print(f"best: trial {study.best_trial.number} with {study.best_value:g} cells")
