"""`voidrl doctor` finds what is missing, broken or hanging, and one problem never hides another."""

import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pseudo_terminals import PseudoTerminal, widest

from voidrl.cli import doctor
from voidrl.cli import main as cli
from voidrl.cli.doctor import Finding, examine, summary
from voidrl.envs import gl

GB = 10**9


def test_the_doctor_of_this_machine(capsys, tmp_path):
    assert cli.main(["doctor", "--out", str(tmp_path / "runs")]) == 0
    *lines, _, last = capsys.readouterr().out.splitlines()
    assert last.startswith("Ready to train on the")
    states = {line.split()[1]: line.split()[0] for line in lines}
    assert {"PyTorch", "Gymnasium", "CUDA", "Atari", "DMControl", "OpenGL", "video"} <= {*states}
    assert all(states[line.split()[1]] == "ok" or "; fix: " in line for line in lines)
    assert not (tmp_path / "runs").exists()  # it leaves nothing behind


@pytest.mark.parametrize(
    ("changed", "code", "sentence"),
    [
        ({}, 0, "Ready to train on the GPU."),
        ({"Atari": "warn", "CUDA": "warn"}, 0, "Ready to train on the CPU; not available: CUDA, Atari."),
        ({"PyTorch": "fail", "Atari": "warn"}, 1, "Not ready, because of PyTorch. First: repair it"),
    ],
)
def test_the_last_sentence_and_the_exit_code(capsys, monkeypatch, changed, code, sentence):
    findings = [
        Finding(name, changed.get(name, "ok"), "there", "repair it" if name in changed else "")
        for name in ("disk", "PyTorch", "CUDA", "Atari", "OpenGL")
    ]
    monkeypatch.setattr(doctor, "examine", lambda folder: iter(findings))
    assert cli.main(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == sentence == summary(findings)
    for one in findings:
        line = next(line for line in lines if f" {one.name} " in line)
        assert line.split()[0] == one.state
        assert line.endswith("fix: repair it") == bool(one.fix)


def test_on_a_terminal_lines_begin_with_signs_and_fit(monkeypatch, plain_terminal):
    long = "found by trying, with a sentence about it that no narrow terminal has the room for"
    findings = [
        Finding("voidrl", "ok", long),
        Finding("Atari", "warn", "no", fix := "pip install 'ale-py<1,>=0.11'"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda folder: iter(findings))
    with PseudoTerminal(60) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        assert cli.main(["doctor"]) == 0
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
        text, lines = terminal.text(), terminal.lines()
    assert widest(lines) <= 60
    assert [line[0] for line in lines if line[0] in "✓!"] == ["✓", "!"]
    assert fix in text  # in one piece


# Crashes and hangs


@pytest.fixture
def only_atari(monkeypatch, tmp_path):
    """Only ALE is tried, and its package has this source."""
    monkeypatch.setattr(doctor, "COMPONENTS", {"Atari": doctor.COMPONENTS["Atari"]})
    monkeypatch.syspath_prepend(tmp_path)

    def run(source, timeout_s=30.0):
        (tmp_path / "ale_py").mkdir()
        (tmp_path / "ale_py" / "__init__.py").write_text(source)
        return {one.name: one for one in examine(tmp_path, timeout_s)}

    return run


def test_a_crash_takes_only_its_own_process(only_atari):
    found = only_atari("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (found["Atari"].state, found["Atari"].found) == ("warn", "its process ended with SIGSEGV")
    assert found["disk"].state == "ok"


def test_a_process_that_hangs_is_ended_with_its_children(only_atari, tmp_path):
    mark = tmp_path / "child"
    source = "import pathlib, subprocess, time; child = subprocess.Popen(['sleep', '100']); "
    source += f"pathlib.Path({str(mark)!r}).write_text(str(child.pid)); time.sleep(100)"
    began = time.monotonic()
    found = only_atari(source, timeout_s=3)
    assert time.monotonic() - began < 20
    assert found["Atari"].found == "did not answer in time"
    assert "-m voidrl.cli.doctor Atari" in found["Atari"].fix
    child = Path(f"/proc/{mark.read_text()}/stat")
    end = time.monotonic() + 5
    while child.exists() and child.read_text().split()[2] != "Z":  # until who has adopted it reaps it
        assert time.monotonic() < end, "the child is still running"
        time.sleep(0.05)


# Missing and broken components


def test_packages_that_are_missing_or_not_supported(monkeypatch):
    def version(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    fix = "pip install 'ale-py<1,>=0.11'"
    assert doctor.probe("Atari") == Finding("Atari", "warn", "ale-py is not installed", fix)
    assert doctor.probe("PyTorch").state == "fail"
    monkeypatch.setattr(metadata, "version", {"ale-py": "0.9.1"}.get)
    found = doctor.probe("Atari")
    assert found.found == "ale-py 0.9.1 is not supported: expected <1,>=0.11"
    assert found.fix == "pip install 'ale-py<1,>=0.11'"


def test_without_a_gpu_triton_need_not_be_installed(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "voidrl.kernels.images", None)
    assert doctor.probe("Triton") == Finding("Triton", "ok", "not used without a GPU")


def test_no_opengl(monkeypatch):
    pytest.importorskip("dm_control")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(gl, "_render", lambda name: ("", f"no lib{name}"))
    found = doctor.probe("OpenGL")
    assert found.state == "warn"
    assert "(egl: no libegl; osmesa: no libosmesa)" in found.found
    assert found.fix == "sudo apt-get install -y libegl1 libgl1 libosmesa6"


def test_a_gpu_that_cannot_be_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = doctor.probe("CUDA")
    assert (found.state, found.fix) == ("warn", "with a GPU: a driver for CUDA 13.0, see nvidia-smi")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert doctor.probe("CUDA").fix == "unset CUDA_VISIBLE_DEVICES"


def test_disks(monkeypatch, tmp_path):
    def free(gigabytes):
        usage = SimpleNamespace(total=500 * GB, used=0, free=int(gigabytes * GB))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        return doctor._disk(tmp_path / "not" / "yet")

    assert free(400) == Finding("disk", "ok", f"400.0 of 500 GB free in {tmp_path}")
    assert free(0.2).state == "fail"
    assert "--out" in free(0.2).fix
    assert list(tmp_path.iterdir()) == []
    if sys.platform == "linux":
        assert "/proc cannot be written" in doctor._disk(Path("/proc/runs")).found
