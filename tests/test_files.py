"""A path that no system call accepts is one sentence, and so is a file that would exhaust its reader."""

import pytest

import voidrl
from voidrl.errors import ConfigError
from voidrl.runs.folder import RunFolder
from voidrl.system.files import parse_json, parse_toml, read_text, user_path

BAD = {
    "x" * 300: r"'x+… cannot be used: file name too long",
    "~nosuchuser/run": "there is no user 'nosuchuser'",
    "a\0b": "embedded null",
    "caf\udce9": "it is not UTF-8",
    "loop": "too many levels of symbolic links",
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "use", [voidrl.load, voidrl.resume, RunFolder.open, lambda path: RunFolder.create(path).__enter__()]
)
def test_a_path_that_cannot_be_used_is_one_sentence(tmp_path, monkeypatch, bad, use):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=BAD[bad]) as caught:
        use(bad)
    assert len(str(caught.value)) < 300


def test_what_is_not_there_yet_is_no_mistake(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/runs/new") == tmp_path / "runs" / "new"
    (tmp_path / "file").touch()
    assert user_path(tmp_path / "file" / "below") == tmp_path / "file" / "below"


def test_a_repeated_key_is_named():
    with pytest.raises(ValueError, match="the key 'b' appears twice"):
        parse_json('{"a": 1, "b": {"a": 1}, "b": 2}')


def test_a_byte_order_mark_is_no_content(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfsteps = 1")
    assert parse_toml(read_text(tmp_path / "a.toml", 100)) == {"steps": 1}
