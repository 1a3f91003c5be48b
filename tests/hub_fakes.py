"""The Hugging Face Hub as folders. Every call is checked against the signature of the installed client."""

import inspect
import shutil
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
from huggingface_hub import errors


class FakeHub:
    """Repositories under a folder, one subfolder for each revision; `calls` is what was asked, in order."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls, self.public = root, [], set()
        self.fails: Exception | None = None

    def put(self, repo_id: str, name: str, content: bytes | str, revision: str = "main") -> None:
        folder = self.root / repo_id / revision
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.root / repo_id / revision).iterdir()}

    # What takes the place of the client's own

    def create_repo(self, api, repo_id, *, private=None, exist_ok=False):
        (self.root / repo_id / "main").mkdir(parents=True, exist_ok=exist_ok)
        return f"https://huggingface.co/{repo_id}"

    def model_info(self, api, repo_id):
        return SimpleNamespace(private=repo_id not in self.public)

    def create_branch(self, api, repo_id, *, branch, exist_ok=False):
        shutil.copytree(self.root / repo_id / "main", self.root / repo_id / branch, dirs_exist_ok=exist_ok)

    def hf_hub_download(self, api, repo_id, filename, *, revision=None):
        path = self.root / repo_id / (revision or "main") / filename
        if not path.is_file():
            raise errors.EntryNotFoundError("404")
        return str(path)

    def upload_folder(self, api, *, repo_id, folder_path, commit_message, revision, allow_patterns):
        for path in Path(folder_path).iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                self.put(repo_id, path.name, path.read_bytes(), revision or "main")

    def snapshot_download(self, repo_id, *, revision, token, allow_patterns, library_name, library_version):
        source = self.root / repo_id / (revision or "main")
        if not source.parent.is_dir():
            raise errors.RepositoryNotFoundError("404 Client Error.", response=response(404))
        if not source.is_dir():
            raise errors.RevisionNotFoundError("404 Client Error.", response=response(404))
        cache = self.root / ".cache" / repo_id
        cache.mkdir(parents=True, exist_ok=True)
        for name in allow_patterns:
            if (source / name).is_file():
                shutil.copy(source / name, cache / name)
        return str(cache)


def response(status: int) -> SimpleNamespace:
    return SimpleNamespace(status_code=status, headers={}, request=None)


def install(monkeypatch, root: Path) -> FakeHub:
    """Puts the fake in the place of the client's own functions."""
    fake = FakeHub(root)

    def replace(owner, name, bound):
        signature = inspect.signature(getattr(owner, name))

        def call(*args, **kwargs):
            signature.bind(*args, **kwargs)  # what the real one would refuse is refused here
            fake.calls.append((name, kwargs))
            if fake.fails is not None:
                raise fake.fails
            return bound(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for name in ("create_repo", "model_info", "create_branch", "hf_hub_download", "upload_folder"):
        replace(huggingface_hub.HfApi, name, getattr(fake, name))
    replace(huggingface_hub, "snapshot_download", fake.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_test")
    return fake
