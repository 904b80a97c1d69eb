"""Removing a study, its folder and its rows in a storage, and starting it over."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import PacelineError, StorageError, StudyError
from paceline.study.metadata import check_name
from paceline.study.sharing.heartbeat import MISSED, Heartbeats, is_held, seconds_between
from paceline.study.sharing.worker import WORKERS
from paceline.study.storage.folder import BEST, JOURNAL, aside_of, check_storage_text, study_lock
from paceline.study.storage.storage import StudyStorage
from paceline.study.view import StudyView

#: What a study's folder holds at least one of.
_OURS = (JOURNAL, ".lock", BEST, "checkpoints", "trials", WORKERS)


@dataclass(frozen=True)
class Removal:
    """What is to be removed of a study."""

    name: str
    folder: Path | None  # None if there is none, or where it is another study's
    n_files: int  # in the folder
    n_bytes: int
    # The storage that holds rows of the study beside those of others; None if the study is in its
    # folder alone.
    store: StudyStorage | None

    @classmethod
    def of(cls, name: str, storage: str | None, directory: Path) -> Removal:
        """Look what there is of a study; ``storage`` is a URL, None the journal in its folder.

        Raises StudyError if there is no such study, or where its folder is none of a study.
        """
        check_name(name)
        check_storage_text(storage)
        folder: Path | None = directory / name
        assert folder is not None
        if not os.path.lexists(folder):
            folder = None
        elif folder.is_symlink():
            raise StudyError(
                f"study {name!r}: {folder} is a link to {os.readlink(folder)}. Remove that folder "
                "and the link yourself."
            )
        elif not folder.is_dir() or not any((folder / each).exists() for each in _OURS):
            raise StudyError(
                f"study {name!r}: {folder} is not the folder of a study, so it was not removed."
            )
        if storage is None:
            if folder is None:
                raise StudyError(f"there is no study {name!r} in {directory}.")
            if not (folder / JOURNAL).exists():
                raise StudyError(
                    f"study {name!r}: {folder} holds no journal, so its trials are in another "
                    "storage. Name that storage with --storage URL."
                )
            return cls(name, folder, *_size(folder), None)
        store = StudyStorage.of(storage, name, directory)
        if store.find(name) is None:
            raise StudyError(f"there is no study {name!r} in {store.label}.")
        if folder is not None and (folder / JOURNAL).exists():
            folder = None  # of a study of that name whose trials are in its journal
        return cls(name, folder, *(_size(folder) if folder else (0, 0)), store)

    def carry_out(
        self,
        *,
        sleep: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Remove the study, its rows first; StudyError where it is being searched."""
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                _check_free(self.name, stack, self.folder)
            if self.store is not None:
                self._remove_rows(self.store, sleep, note)
            if self.folder is not None:
                # Under another name no search finds it, while its files go one after another.
                aside = self.folder.with_name(f".{secrets.token_hex(4)}.removed")
                try:
                    self.folder.rename(aside)
                    shutil.rmtree(aside)  # removes a link, and not what it leads to
                except OSError as error:
                    raise StorageError(
                        f"study {self.name!r}: {error.filename or self.folder} cannot be removed: "
                        f"{error.strerror or error}."
                    ) from None

    def _remove_rows(
        self, store: StudyStorage, sleep: Callable[[float], None], note: Callable[[str], None]
    ) -> None:
        number = store.find(self.name)
        if number is None:
            return
        workers = self.folder / WORKERS if self.folder is not None else None
        peers = Heartbeats(store, number, secrets.token_hex(8), folder=workers)
        peers.look()
        if peers.others:
            # A worker of another machine, which has not left: does it still beat?
            every = max([seconds_between(), *(peer.every for peer in peers.others.values())])
            note(f"checking for {2 * every:.0f} seconds whether another machine is searching it")
            for _ in range(MISSED):
                sleep(2 * every / MISSED)
                peers.look()
                if any(peer.alive for peer in peers.others.values()):
                    break
        if any(peer.alive for peer in peers.others.values()):
            raise StudyError(f"study {self.name!r} is being searched. Stop the search first.")
        with store.writing():
            store.storage.delete_study(number)
        store.close()


def _size(folder: Path) -> tuple[int, int]:
    """Return the number of files in a folder, and their bytes."""
    sizes = [
        os.lstat(os.path.join(where, name)).st_size
        for where, _, files in os.walk(folder)
        for name in files
    ]
    return len(sizes), sum(sizes)


@contextlib.contextmanager
def begun_anew(name: str, directory: Path, *, overwrite: bool) -> Iterator[None]:
    """Put a study's folder aside while a new one begins; its storage is the journal in its folder.

    When the block ends, the earlier study is removed if the new one has a trial that came to an end
    without failing. It comes back if the new one has no trial, or failed ones only. While trials of
    the new one are unfinished both stay, until a later block ends. ``overwrite``: the study starts
    over now; otherwise an earlier search started it over.
    """
    check_name(name)
    folder = directory / name
    aside = aside_of(folder)
    _settle(name, directory)
    if overwrite and folder.is_dir() and not aside.exists():
        with contextlib.ExitStack() as stack:
            _check_free(name, stack, folder)
            _move(name, folder, aside)
    try:
        yield
    finally:
        _settle(name, directory)


def _settle(name: str, directory: Path) -> None:
    """Remove the earlier study, or bring it back, as ``begun_anew`` says."""
    folder = directory / name
    aside = aside_of(folder)
    if not aside.is_dir():
        return
    try:
        view = StudyView.open(name, directory=directory)
        states = {trial.state for trial in view.trials} if view is not None else set()
    except PacelineError:
        return  # the present study cannot be read: both stay
    if states & {"complete", "pruned"}:
        shutil.rmtree(aside, ignore_errors=True)
    elif states <= {"failed", "rejected"}:
        with contextlib.ExitStack() as stack:
            if folder.exists():
                try:
                    _check_free(name, stack, folder)
                except StudyError:
                    return
                gone = folder.with_name(f".{secrets.token_hex(4)}.removed")
                _move(name, folder, gone)
                shutil.rmtree(gone, ignore_errors=True)
            _move(name, aside, folder)


def _move(name: str, folder: Path, to: Path) -> None:
    try:
        folder.rename(to)
    except OSError as error:
        raise StorageError(
            f"study {name!r}: {folder} cannot be moved to {to}: {error.strerror or error}."
        ) from None


def _check_free(name: str, stack: contextlib.ExitStack, folder: Path) -> None:
    """Hold a study's folder until the stack ends; StudyError where the study is being searched."""
    searched = StudyError(f"study {name!r} is being searched. Stop the search first.")
    if not stack.enter_context(study_lock(folder)):
        raise searched
    if any(is_held(path) for path in (folder / WORKERS).glob("*.lock")):
        raise searched
