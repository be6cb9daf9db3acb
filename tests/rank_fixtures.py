"""A small model on disk, the same in one process, and one thread a rank: fixtures of the tests that start ranks."""

import os

import pytest

from macs.engine.local import LocalEngine
from tests import rank_jobs, tiny


@pytest.fixture(scope="session", autouse=True)
def one_thread_a_rank():
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    os.environ.pop("OMP_NUM_THREADS") if before is None else os.environ.update(OMP_NUM_THREADS=before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return str(rank_jobs.save_published(tiny.qwen(), tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def local(folder):
    return LocalEngine(folder)
