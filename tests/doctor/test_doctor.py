"""`voidrl doctor` finds what is missing, broken or hanging, and one problem never hides another."""

import io
import json
import os
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pseudo_terminals import PseudoTerminal, widest

from voidrl.cli import main as cli
from voidrl.cli.checkup import checkup, probes
from voidrl.cli.checkup.checkup import examine, is_ready, summary
from voidrl.cli.checkup.probes import Finding, UnusableError
from voidrl.envs import gl
from voidrl.presets.presets import PROTOCOLS, replay_bytes
from voidrl.system import machine

GB = 10**9


def ok(*names):
    return [Finding(name, "ok", "there") for name in names]


ALL = ok(*checkup.NAMES)


# The report


def test_the_doctor_of_this_machine(capsys, tmp_path):
    code = cli.main(["doctor", "--json", "--out", str(tmp_path / "runs")])
    output = json.loads(capsys.readouterr().out)
    assert code == 0
    assert output["ready"] is True
    assert output["summary"].startswith("Ready to train on the")
    found = {one["name"]: one for one in output["findings"]}
    assert len(found) == len(output["findings"])
    assert set(found) <= set(checkup.NAMES)
    assert {"Python", "PyTorch", "Gymnasium", "CUDA", "Atari", "DMControl", "OpenGL", "video"} <= set(found)
    for one in found.values():
        assert one["found"]
        assert one["state"] == "ok" or one["fix"], one
    assert not (tmp_path / "runs").exists()  # it leaves nothing behind


@pytest.mark.parametrize(
    ("changed", "code", "sentence"),
    [
        ({}, 0, "Ready to train on the GPU."),
        (
            {"Atari": "warn", "OpenGL": "warn", "CUDA": "warn", "memory": "warn"},
            0,
            "Ready to train on the CPU; not available: CUDA, Atari, OpenGL.",
        ),
        ({"PyTorch": "fail", "Atari": "warn"}, 1, "Not ready, because of PyTorch. First: repair it"),
    ],
)
def test_the_last_sentence_and_the_exit_code(capsys, monkeypatch, changed, code, sentence):
    findings = [
        Finding(one.name, changed.get(one.name, "ok"), "there", "repair it" if one.name in changed else "")
        for one in ALL
    ]
    monkeypatch.setattr(checkup, "examine", lambda folder: iter(findings))
    assert cli.main(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == sentence == summary(findings)
    for one in findings:
        line = next(line for line in lines if f" {one.name} " in line)
        assert line.split()[0] == one.state
        assert line.endswith("fix: repair it") == bool(one.fix)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_on_a_terminal_lines_begin_with_signs_and_fit(monkeypatch, columns):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "CI"):
        monkeypatch.delenv(name, raising=False)
    long = "found by trying, with a sentence about it that no narrow terminal has the room for"
    findings = [
        Finding("Python", "ok", long),
        Finding("Atari", "warn", "missing", "pip install 'voidrl[atari]'"),
        Finding("disk", "fail", "full", "rm"),
    ]
    monkeypatch.setattr(checkup, "examine", lambda folder: iter(findings))
    with PseudoTerminal(columns) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        assert cli.main(["doctor"]) == 1
        monkeypatch.setattr(sys, "stdout", sys.__stdout__)
        text, lines = terminal.text(), terminal.lines()
    assert "\x1b[32m✓" in text
    assert widest(lines) <= columns
    assert [line[0] for line in lines if line[0] in "✓!✗"] == ["✓", "!", "✗"]
    assert "pip install 'voidrl[atari]'" in text  # in one piece


def test_a_stream_without_unicode_gets_words(monkeypatch):
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="ascii"))
    finding = Finding("disk", "warn", "in /données", "repair …")
    monkeypatch.setattr(checkup, "examine", lambda folder: iter([finding]))
    assert cli.main(["doctor"]) == 0
    sys.stdout.flush()
    line = file.getvalue().decode().splitlines()[0]
    assert line.split() == ["warn", "disk", "in", "/donn?es;", "fix:", "repair", "..."]


# Crashes and hangs


@pytest.fixture
def only_atari(monkeypatch, tmp_path):
    """Only ALE is tried, and its package has this source."""
    monkeypatch.setattr(probes, "GROUPS", {"atari": ("Atari",)})
    monkeypatch.syspath_prepend(tmp_path)

    def run(source, timeout_s=30.0):
        (tmp_path / "ale_py").mkdir()
        (tmp_path / "ale_py" / "__init__.py").write_text(source)
        return {one.name: one for one in examine(tmp_path, timeout_s)}

    return run


def test_an_import_that_fails_is_one_finding_among_the_others(only_atari):
    found = only_atari("raise ImportError('libale.so: cannot open shared object file')")
    assert found["Atari"] == Finding(
        "Atari",
        "warn",
        "does not work: libale.so: cannot open shared object file",
        "pip install --force-reinstall 'voidrl[atari]'",
    )
    assert found["disk"].state in ("ok", "warn")  # the disk may be nearly full
    assert is_ready(found.values())


def test_a_crash_takes_only_its_own_process(only_atari):
    found = only_atari("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert found["Atari"].found == "its process ended with SIGSEGV"
    assert found["Atari"].state == "warn"


def test_a_process_that_hangs_is_ended_with_its_children(only_atari, tmp_path):
    mark = tmp_path / "child"
    source = "import pathlib, subprocess, time; child = subprocess.Popen(['sleep', '100']); "
    source += f"pathlib.Path({str(mark)!r}).write_text(str(child.pid)); time.sleep(100)"
    began = time.monotonic()
    found = only_atari(source, timeout_s=1.5)
    assert time.monotonic() - began < 20
    assert found["Atari"].found == "did not answer in time"
    assert "-m voidrl.cli.checkup.probes atari" in found["Atari"].fix
    child = int(mark.read_text())
    for _ in range(100):  # it is reaped by whoever has adopted it
        try:
            if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                break
            os.kill(child, 0)
        except OSError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child is still running")


def test_stopping_early_does_not_wait_for_the_rest(only_atari, tmp_path):
    (tmp_path / "ale_py").mkdir()
    (tmp_path / "ale_py" / "__init__.py").write_text("import time; time.sleep(100)")
    began = time.monotonic()
    looking = examine(tmp_path)
    assert next(looking).name == "Python"
    looking.close()  # as Ctrl-C does
    assert time.monotonic() - began < 20


def test_findings_before_a_crash_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(probes, "GROUPS", {"tools": probes.GROUPS["tools"]})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "huggingface_hub.py").write_text("import os; print('noise', end=''); os._exit(3)")
    found = {one.name: one for one in examine(tmp_path)}
    assert found["Matplotlib"].state == "ok"
    crashed = found["Hugging Face Hub"]
    assert (crashed.state, crashed.found) == ("warn", "its process ended with exit status 3")
    assert "-m voidrl.cli.checkup.probes tools" in crashed.fix
    assert "TensorBoard" not in found  # which came after it


def test_a_check_that_raises_is_a_finding(monkeypatch, tmp_path):
    monkeypatch.setattr(probes, "GROUPS", {})
    monkeypatch.setattr(machine, "memory", lambda: 1 / 0)
    found = {one.name: one for one in examine(tmp_path)}
    assert found["memory"].found == "could not be checked: division by zero"
    assert found["disk"].state in ("ok", "warn")  # the disk may be nearly full


# Missing and broken components


def test_packages_that_are_not_installed(monkeypatch):
    def version(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    found = {name: probes.examine(name) for name in probes.COMPONENTS if probes.COMPONENTS[name].packages}
    assert found["Atari"] == Finding(
        "Atari", "warn", "ale-py is not installed", "pip install 'voidrl[atari]'"
    )
    assert found["DMControl"].fix == found["OpenGL"].fix == "pip install 'voidrl[dmc]'"
    assert found["video"].fix == "pip install 'voidrl[video]'"
    engines = {"Ray": "ray", "submitit": "slurm", "Optuna": "tune"}
    for name, extra in engines.items():
        assert (found[name].state, found[name].fix) == ("warn", f"pip install 'voidrl[{extra}]'")
    assert found["PyTorch"].state == found["Gymnasium"].state == found["TensorBoard"].state == "fail"
    assert not is_ready(found.values())


def test_a_version_that_voidrl_does_not_support(monkeypatch):
    required = ["torch<3,>=2.11", "ale_py<1,>=0.11; extra == 'atari'", "rich (>=13.7,<16)"]
    versions = {"torch": "2.13.0+cpu", "ale-py": "0.9.1", "rich": "16.0"}
    monkeypatch.setattr(metadata, "requires", lambda name: required)
    monkeypatch.setattr(metadata, "version", versions.get)
    found = probes.examine("Atari")
    assert found.found == "ale-py 0.9.1 is not supported: expected <1,>=0.11"
    assert found.fix == "pip install 'ale-py<1,>=0.11'"
    assert checkup._package().state == "fail"
    assert "rich 16.0 is not supported" in checkup._package().found
    assert checkup._package().fix == "pip install 'rich<16,>=13.7'"
    assert probes.installed("torch") == "torch 2.13.0+cpu"


def test_no_opengl(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(gl, "TIMEOUT_S", gl.TIMEOUT_S)
    monkeypatch.setattr(gl, "_try", lambda variables: f"no lib{variables['MUJOCO_GL']}")
    monkeypatch.setattr(metadata, "version", lambda package: "1.0.50")
    found = probes.examine("OpenGL")
    assert found.state == "warn"
    assert "(egl: no libegl; osmesa: no libosmesa)" in found.found
    assert found.fix == "sudo apt-get install -y libegl1 libgl1 libosmesa6"
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert probes.examine("OpenGL").fix == "unset MUJOCO_GL"


def test_no_ffmpeg(monkeypatch):
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/bin/false")
    found = probes.examine("video")
    assert found.state == "warn"
    assert "ffmpeg (/bin/false) could not write" in found.found
    assert found.fix == "pip install --force-reinstall 'voidrl[video]'"


@pytest.mark.parametrize(
    ("driver", "build", "hidden", "found", "fix"),
    [
        (None, "13.0", None, "no NVIDIA GPU", "voidrl list presets"),
        ("580.1, H200", None, None, "built for CUDA None, does not see the GPU", "install PyTorch with CUDA"),
        ("580.1, H200", "13.0", "", "CUDA_VISIBLE_DEVICES=''", "unset CUDA_VISIBLE_DEVICES"),
        ("470.2, H200", "13.0", None, "does not see the GPU (470.2, H200)", "update the driver"),
    ],
)
def test_a_gpu_that_cannot_be_used(monkeypatch, driver, build, hidden, found, fix):
    monkeypatch.setattr(probes, "nvidia_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    one = probes.examine("CUDA")
    assert one.state == "warn"
    assert found in one.found
    assert fix in one.fix


def test_a_gpu_is_described(monkeypatch):
    monkeypatch.setattr(probes, "nvidia_driver", lambda: "580.65, NVIDIA H200")
    gpu = {
        "is_available": True,
        "mem_get_info": (143 * GB, 151 * GB),
        "get_device_capability": (9, 0),
        "device_count": 2,
        "get_device_name": "NVIDIA H200",
    }
    for name, value in gpu.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, device=None: ones(*shape))
    found = "NVIDIA H200 (1 of 2; a run uses one), 143 of 151 GB free, bf16, driver 580.65"
    assert probes.examine("CUDA") == Finding("CUDA", "ok", found)


@pytest.mark.parametrize(("name", "fix"), [("Triton kernels", "gcc"), ("CUDA graphs", "use --engine eager")])
def test_kernels_and_graphs_that_do_not_work(monkeypatch, name, fix):
    def broken():
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    component = probes.COMPONENTS[name]._replace(packages=(), probe=broken)
    monkeypatch.setitem(probes.COMPONENTS, name, component)
    found = probes.examine(name)
    assert (found.state, found.found) == ("warn", "does not work: Failed to find C compiler")
    assert fix in found.fix


def test_the_reason_and_the_fix_of_an_unusable_component_are_shown(monkeypatch):
    def unusable():
        raise UnusableError("no ROMs", "get some")

    monkeypatch.setitem(probes.COMPONENTS, "Atari", probes.Component((), unusable))
    assert probes.examine("Atari") == Finding("Atari", "warn", "no ROMs", "get some")


# The machine


def test_disks(monkeypatch, tmp_path):
    def free(gigabytes):
        usage = SimpleNamespace(total=500 * GB, used=0, free=int(gigabytes * GB))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        return checkup._disk(tmp_path / "not" / "yet")

    assert free(400).state == "ok"
    assert f"400.0 of 500 GB free in {tmp_path}" in free(400).found
    assert free(10).state == "warn"
    assert "atari-paper (21.2 GB)" in free(10).found
    assert "maze-demo" not in free(10).found
    assert free(0.2).state == "fail"
    assert "--out" in free(0.2).fix
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=0, used=0, free=0))
    assert checkup._disk(tmp_path).state == "ok"  # such as a network disk that does not say


def test_folders(tmp_path):
    assert checkup._disk(tmp_path / "new" / "runs").state in ("ok", "warn")
    assert list(tmp_path.iterdir()) == []
    closed = checkup._disk(Path("/proc/runs"))
    assert closed.state == "fail"
    assert "/proc cannot be written" in closed.found


def test_memory_and_cores_that_are_few(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(64 * GB, 5 * GB, 8 * GB))
    found = checkup._memory()
    assert found.state == "warn"
    assert found.found.startswith("5.0 of 8.0 GB free (container limit; the machine has 64.0): less than")
    assert "atari-paper (7.1 GB), urlb-pixels (10.6 GB)" in found.found
    assert "--replay.capacity-steps" in found.fix
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(64 * GB, 60 * GB, None))
    assert checkup._memory() == Finding("memory", "ok", "60.0 of 64.0 GB free")
    monkeypatch.setattr(machine, "cores", lambda: machine.Cores(64, 1.5))
    assert checkup._cpu().state == "warn"
    assert checkup._cpu().found.startswith("64 cores, of which this process may use 1.5")


def test_presets_and_their_replays():
    assert replay_bytes("atari-paper") == 1_000_000 * (84 * 84 + 25)
    assert replay_bytes("urlb-pixels") == 500_000 * (3 * 84 * 84 + 65)
    assert checkup._too_large(5 * GB) == "atari-paper (7.1 GB), urlb-pixels (10.6 GB)"
    assert checkup._too_large(10 * GB, 3).startswith("atari-paper (21.2 GB), urlb-pixels")
    assert checkup._too_large(100 * GB) == ""
    assert all(preset in checkup._too_large(0) for preset in PROTOCOLS)


def test_where_compiled_code_is_kept_and_how_to_delete_it(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    folder = tmp_path / "my cache" / "voidrl" / "compiled"
    assert checkup._compile_cache() == Finding("compile cache", "ok", f"0 bytes in {folder}")
    (folder / "code").write_bytes(b"x" * 2500)
    assert checkup._compile_cache().found == f"2.5 kB in {folder}; to empty it: rm -r '{folder}'"
    folder.chmod(0o777)
    finding = checkup._compile_cache()
    assert finding.state == "warn"
    assert finding.found.startswith(f"other users can write to {folder}: every start")
    assert finding.fix == "set XDG_CACHE_HOME to a folder that only you can write"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "code"))
    assert checkup._compile_cache().found.startswith(f"{folder / 'code'}: File exists: ")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    assert checkup._compile_cache().found == "/mine, set by TORCHINDUCTOR_CACHE_DIR"
