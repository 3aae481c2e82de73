"""Shared by the tests of foreign traces."""

from __future__ import annotations

import pytest
from kineto_files import write

from odcsim.foreign import ingest
from odcsim.trace_format import read_run, write_run


@pytest.fixture
def ingested(tmp_path):
    """Ingests documents, and hands back what a reader of the run folder sees too."""

    def ingest_documents(documents, **options):
        run = ingest(write(documents, tmp_path), **options)
        write_run(tmp_path / "run", run.info, run.spans_of_ranks)
        read = read_run(tmp_path / "run")
        assert read.info == run.info
        assert read.spans_of_ranks == run.spans_of_ranks
        return run

    return ingest_documents
