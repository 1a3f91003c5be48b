"""The page as a file: complete, offline, safe, replaced atomically, and open about what is missing."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_runs import MAZE, write_experiment, write_run

from voidrl.cli.main import main
from voidrl.errors import CheckpointError, ConfigError, MissingExtraError, RunFolderError
from voidrl.report import gallery, page
from voidrl.report.page import write_report
from voidrl.runs.folder import RunFolder

ROWS = [{"step": step, "coverage/cells": step // 20, "time/steps_per_second": 10.0} for step in (50, 100)]
TASK = [{"step": step, "eval/return": step / 100, "eval/success": step / 200} for step in (50, 100)]
GOAL = f"{MAZE}&goal=far"
VISITS = [0] * 6 + [9, 1, 4] + [0] * 16


class Page(HTMLParser):
    """Visible text, tags with their attributes, and the embedded data of a page."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.inside = [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data):
        if self.inside and self.inside[-1] == "script" and data.startswith('{"grids"'):
            self.data = json.loads(data)
        elif not self.inside or self.inside[-1] not in ("script", "style"):
            self.texts.append(data)


def report(*paths, out, **options):
    options = {"say": lambda text: None, "media": False, **options}
    return Page(write_report(paths, out, **options))


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    for seed in (1, 2):
        write_run(root / f"apt{seed}", seed=seed, rows=ROWS, visits=VISITS)
        write_run(root / f"tuned{seed}", env=GOAL, phase="finetune", seed=seed, rows=TASK, visits=VISITS)
    write_run(root / "scratch", env=GOAL, phase="train", rows=TASK[:1], error="diverged")
    return root


@pytest.fixture
def studio(monkeypatch):
    """Replaces the functions that play episodes and records their calls."""
    asked = []

    def make_clip(saved):
        folder = saved.path.parents[1]
        asked.append(folder.name)
        name = folder.name.encode()
        return (8 + len(name)).to_bytes(4, "big") + b"ftyp" + name

    monkeypatch.setattr(gallery, "make_clip", make_clip)
    return asked


def test_the_page_begins_with_what_was_run_and_what_came_out(runs, tmp_path):
    found = report(runs, out=tmp_path / "report.html", title="My runs")
    assert "My runs" in found.text
    assert "2 pre-training, 2 fine-tuning, 1 from scratch" in found.text
    assert "PixelMaze-v0?goal=far: success rate after 50 to 100 steps: apt 50%" in found.text
    assert "scratch: 50 of 100 steps: diverged" in found.text
    assert found.text.index("success rate after") < found.text.index("Lines are means over seeds")
    for section in ("Summary", "Learning curves", "Coverage", "Settings", "Runs", "Reproduce"):
        assert section in found.text


def test_curves_in_the_page_are_mean_and_range(runs, tmp_path):
    write_run(
        runs / "apt3", seed=3, rows=[{"step": 50, "coverage/cells": 0}, {"step": 100, "coverage/cells": 5}]
    )
    data = report(runs, out=tmp_path / "report.html").data
    panel = next(each for each in data["panels"] if each["stage"] == "pretrain")
    curve = panel["curves"]["coverage/maze"][0]  # 2, 2, 0 and 5, 5, 5 of 7 cells
    assert data["grids"][curve["grid"]] == [50, 100]
    assert curve["mean"] == [pytest.approx(4 / 21, rel=1e-4), pytest.approx(5 / 7, rel=1e-4)]
    assert (curve["low"], curve["high"], curve["runs"]) == (
        [0, pytest.approx(5 / 7, rel=1e-4)],
        [pytest.approx(2 / 7, rel=1e-4), pytest.approx(5 / 7, rel=1e-4)],
        3,
    )
    assert panel["arms"] == [{"label": "apt", "phase": "", "style": 0, "runs": 3, "seeds": 3}]


def test_the_page_is_self_contained(runs, tmp_path, studio):
    found = report(runs, out=tmp_path / "report.html", media=True)
    for tag, attributes in found.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    text = (tmp_path / "report.html").read_text()
    assert "@import" not in text
    assert not re.search(r"url\((?!\$\{blobUrl)", text)
    assert "default-src 'none'" in text


def test_foreign_strings_are_never_markup(tmp_path):
    evil = '</script><img src=x onerror="alert(1)">&<u>'
    write_run(
        tmp_path / "runs" / "<i>run",
        rows=[{"step": 100, "coverage/cells": 3, f"train/{evil}": 1.0}],
        machine={"command": f"voidrl {evil}", "versions": {"voidrl": evil, "torch": [evil]}, "gpus": evil},
        error=evil,
        steps=200,
        visits=VISITS,
        tags=evil,
    )
    write_experiment(
        tmp_path / "runs", [{"folder": "<i>run", "label": evil}], title=evil, about=evil, command=evil
    )
    found = report(tmp_path / "runs", out=tmp_path / "report.html")
    assert not {"img", "u"} & {tag for tag, _ in found.tags}
    assert evil in found.text
    assert found.data["panels"][0]["arms"][0]["label"] == evil


def test_the_old_page_stays_until_the_new_one_is_complete(runs, tmp_path, monkeypatch):
    out = tmp_path / "report.html"
    report(runs, out=out)
    before = out.read_text()
    monkeypatch.setattr(Path, "replace", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(CheckpointError, match=r"cannot write .*report.html: No space left"):
        report(runs, out=out)
    assert out.read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "report.html"}


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("missing/report.html", r"there is no folder .*missing; create it first"),
        ("", r"is a folder: name a file, such as"),
        ("report.docx", r"ends with .html or .json"),
    ],
)
def test_a_bad_output_is_refused_before_runs_are_read(runs, tmp_path, out, message, monkeypatch):
    monkeypatch.setattr(page.Report, "read", lambda *args: pytest.fail("read first"))
    with pytest.raises((RunFolderError, ConfigError), match=message):
        report(runs, out=tmp_path / out)
    monkeypatch.setattr(page.os, "access", lambda *args: False)
    with pytest.raises(RunFolderError, match=r"is read-only; choose another path with -o"):
        report(runs, out=tmp_path / "report.html")


def test_videos_are_of_agents_before_and_after_and_leave_runs_as_they_are(runs, tmp_path, studio):
    before = sorted(runs.rglob("*"))
    found = report(runs, out=tmp_path / "report.html", media=True)
    assert sorted(studio) == ["apt1", "tuned1"]  # scratch has no checkpoint
    assert len(found.data["clips"]) == 2
    assert "apt, before" in found.text
    assert "apt, after" in found.text
    assert "No video of scratch" in found.text
    assert sorted(runs.rglob("*")) == before


def test_the_page_says_once_why_videos_are_missing_and_the_remedy(runs, tmp_path, monkeypatch):
    def without_ffmpeg(saved):
        raise MissingExtraError("ffmpeg", "video", "making a video")

    monkeypatch.setattr(gallery, "make_clip", without_ffmpeg)
    found = report(runs, out=tmp_path / "report.html", media=True)
    assert found.text.count("pip install 'imageio-ffmpeg") == 1
    assert "No video of apt1, tuned1" in found.text
    assert found.data["clips"] == []


def test_the_budget_of_media_is_respected(runs, tmp_path, studio, monkeypatch):
    monkeypatch.setattr(page.gallery, "MAX_BYTES", 20)  # each of 12 and 14 bytes
    found = report(runs, out=tmp_path / "report.html", media=True)
    assert len(found.data["clips"]) == 1
    assert "MB for videos is reached" in found.text
    monkeypatch.setattr(page.gallery, "MAX_CLIPS", 1)
    found = report(runs, out=tmp_path / "report.html", media=True)
    assert len(found.data["clips"]) == 1
    assert "The first 1 of 3 possible videos are shown." in found.text


def test_a_run_without_metrics_is_reported(tmp_path):
    folder = write_run(tmp_path / "run", rows=[])
    (folder / "metrics.jsonl").unlink()
    found = report(folder, out=tmp_path / "report.html")
    assert "No results yet." in found.text
    assert "there is no metrics file at" in found.text
    assert found.data["panels"][0]["curves"] == {}


def test_damaged_runs_and_newer_formats_are_named(runs, tmp_path):
    said = []
    (runs / "apt2" / "checkpoints" / "step_000000000100" / "loop.safetensors").write_bytes(b"x")
    manifest = runs / "tuned1" / "checkpoints" / "step_000000000100" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 7}))
    (runs / "tuned2" / "config.json").write_text("{")
    found = report(runs, out=tmp_path / "report.html", say=said.append)
    assert [heat["label"] for heat in found.data["heats"]] == ["apt, seed 1"]
    for text in (found.text, " ".join(said)):
        assert "step_000000000100/loop.safetensors is truncated" in text
        assert "in format 7 and cannot be read" in text
        assert "tuned2" in text
    assert "1 skipped" in found.text


def test_heat_maps_hold_visits_entropy_and_walls(runs, tmp_path):
    found = report(runs, out=tmp_path / "report.html")
    heat = found.data["heats"][0]
    assert (heat["size"], heat["visits"], heat["marks"]) == (5, VISITS, {"S": 6})
    assert len(heat["walls"]) == 25 - 7
    # 9, 1 and 4 of 14 visits: −Σ p log p; at most log 7.
    assert "entropy 0.83 of 1.95 nats" in found.text


def test_any_environment_has_a_map_of_its_cells_or_else_of_its_positions(tmp_path):
    root, places = tmp_path / "runs", [(-0.5, 0.5), (-0.5, 0.5), (0.5, 0.5), (1.6, -30.5)]
    write_run(root / "a", env="own:Plane", rows=ROWS, visits=[], positions=places)
    write_run(root / "b", env="own:Grid", rows=ROWS, visits=[2, 0, 0, 0, 7], positions=places)
    write_run(root / "c", env="own:Large", rows=ROWS, visits=[1, 0, 1, *[0] * 129, 5, *[0] * 4000, 1])
    write_run(root / "d", env="own:Mute", rows=ROWS, visits=[])
    write_run(root / "e", env="voidrl/PointMass-v0?task=stay", rows=ROWS, visits=[1])
    found = report(root, out=tmp_path / "report.html")
    assert found.data["heats"][0]["env"].endswith(", pre-training")
    maps = {re.split("[?,]", heat["env"])[0]: heat for heat in found.data["heats"]}
    seen = {
        env: {divmod(i, heat["size"]): n for i, n in enumerate(heat["visits"]) if n}
        for env, heat in maps.items()
    }
    assert {env: heat["size"] for env, heat in maps.items()} == {
        "own:Plane": 63, "own:Grid": 3, "own:Large": 33, "PointMass-v0": 10
    }  # fmt: skip
    # Bins of ½: 63 of them from −30½ to 1, and 5 from −½ to 2 in the middle. The top row is the highest y.
    assert maps["own:Plane"]["range"] == {"x": [-15, 16.5], "y": [-30.5, 1]}
    assert seen["own:Plane"] == {(0, 29): 2, (0, 31): 1, (62, 33): 1}
    assert "3 bins visited, each 0.5 wide" in found.text
    assert seen["own:Grid"] == {(0, 0): 2, (1, 1): 7}
    assert "2 cells visited, drawn in rows of 3" in found.text
    # 65 × 65 cells, 2 × 2 of which are drawn as one: 132 is in row 2, column 2; 4133 in row 63, column 38.
    assert seen["own:Large"] == {(0, 0): 1, (0, 1): 1, (1, 1): 5, (31, 19): 1}


def test_watching_writes_a_page_that_reloads_itself_until_nothing_runs(runs, tmp_path, monkeypatch):
    alive = write_run(runs / "alive", seed=3, rows=ROWS[:1])
    held, out, pages = RunFolder(alive).lock(), tmp_path / "report.html", []
    held.__enter__()

    def sleep(seconds):
        pages.append(out.read_text())
        held.__exit__(None, None, None)

    monkeypatch.setattr(page.time, "sleep", sleep)
    assert page.watch_report([runs], out, media=False) == out
    assert "1 running" in pages[0]
    assert "setTimeout(() => location.reload(), 10000" in pages[0]
    assert "location.reload()" not in out.read_text()


def test_the_command_writes_what_the_name_says(runs, tmp_path, capsys):
    assert main(["report", str(runs), "-o", str(tmp_path / "r.html"), "--no-media"]) == 0
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert main(["report", str(runs), "-o", str(tmp_path / "r.json")]) == 0
    assert len(json.loads((tmp_path / "r.json").read_text())) == 5
    assert "report: " in capsys.readouterr().out
    assert main(["report", str(tmp_path / "nowhere"), "-o", str(tmp_path / "r.html")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("voidrl: there is nothing at ")
    assert "Traceback" not in captured.err
