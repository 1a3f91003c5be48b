"""Calls to the Hugging Face Hub (extra `hub`), with one sentence for everything that can go wrong."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from voidrl import __version__
from voidrl.errors import ConfigError, HubError, MissingExtraError, VoidrlWarning
from voidrl.sharing.card import CARD, is_edited

_LIBRARY: dict[str, Any] = {"library_name": "voidrl", "library_version": __version__}
_PROBLEMS = {  # by the client's exception
    "GatedRepoError": "is gated: ask for access on its page, then `hf auth login`",
    "RepositoryNotFoundError": "does not exist, or it is private and your token does not give access: check "
    "the name, or log in with `hf auth login`",
    "RevisionNotFoundError": "has no such revision: expected a branch, tag or commit of it",
}
_NO_ACCESS = ": log in with `hf auth login` and a token that may write"
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w", re.ASCII)


def is_repo_id(source: str | Path) -> bool:
    """Whether a source has the form user/name."""
    return isinstance(source, str) and _REPO_ID.fullmatch(source) is not None


def require_repo_id(repo_id: str) -> None:
    """Refuse names that the Hub would refuse."""
    if not is_repo_id(repo_id) or len(repo_id) > 96 or re.search(r"--|\.\.|\.git$", repo_id):
        raise ConfigError(
            f"repo_id = {repo_id!r} cannot be used: expected user/name of up to 96 letters, digits, '-', '_' "
            f"and '.', such as 'somebody/apt-maze'"
        )


def download(repo_id: str, files: Sequence[str], revision: str | None, token: str | None) -> Path:
    """Download the files that the model has, and return their folder in the client's cache."""
    absent = f"there is no folder {repo_id!r} here, and "
    with _calls(repo_id, token, absent) as (hub, _):
        about = {"revision": revision, "token": token, "allow_patterns": [*files], **_LIBRARY}
        return Path(hub.snapshot_download(repo_id, **about))


def publish(
    folder: Path,
    repo_id: str,
    files: Sequence[str],
    *,
    private: bool,
    message: str,
    revision: str | None,
    token: str | None,
) -> str:
    """Upload files of a folder in one commit to a model, made if necessary, and return the model's URL."""
    with _calls(repo_id, token) as (hub, api):
        if token is None and hub.get_token() is None:
            raise HubError(
                "no token for the Hugging Face Hub was found: log in with `hf auth login`, or set HF_TOKEN"
            )
        url = api.create_repo(repo_id, private=private or None, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise HubError(
                f"the model {repo_id!r} already exists and is public, so nothing was uploaded: make it "
                f"private on the Hub, or choose another name"
            )
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        uploaded = [*files]
        with suppress(hub.errors.EntryNotFoundError):
            published = Path(api.hf_hub_download(repo_id, CARD, revision=revision)).read_text("utf-8")
            if is_edited(published):
                uploaded.remove(CARD)
                why = "was edited on the Hub and is kept; delete it to get a new one"
                warnings.warn(f"the card of {repo_id!r} {why}", VoidrlWarning, stacklevel=3)
        where = {"repo_id": repo_id, "folder_path": folder, "revision": revision}
        api.upload_folder(commit_message=message, allow_patterns=uploaded, **where)
    return str(url)


@contextmanager
def _calls(repo_id: str, token: str | None, absent: str = "") -> Iterator[tuple[Any, Any]]:
    """Give access to the client and its calls, and turn its errors into one sentence each.

    Unless the model was found, the sentence begins with `absent`, since a folder may have been meant.
    """
    try:
        import huggingface_hub as hub
        import huggingface_hub.errors
    except ImportError:
        raise MissingExtraError("huggingface_hub", "hub", f"{absent}the Hugging Face Hub") from None
    errors: Any = hub.errors
    try:
        yield hub, hub.HfApi(token=token, **_LIBRARY)
    except (errors.HFValidationError, errors.HTTPError, errors.EntryNotFoundError, OSError) as e:
        if problem := _PROBLEMS.get(type(e).__name__):
            raise HubError(f"{absent}the model {repo_id!r} on the Hugging Face Hub {problem}") from e
        line = (str(e).strip().splitlines() or [type(e).__name__])[0]
        status = getattr(getattr(e, "response", None), "status_code", None)
        problem = f"cannot be reached for {repo_id!r} ({line}): check the network and HF_HUB_OFFLINE, or "
        problem += "pass a folder"
        if status is not None:
            remedy = _NO_ACCESS if status in (401, 403) else ""
            problem = f"answered {status} for {repo_id!r} ({line}){remedy}"
        raise HubError(f"{absent}the Hugging Face Hub {problem}") from e
