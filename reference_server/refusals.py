"""The log's line on a request that was refused. Event loop only."""

from __future__ import annotations

import logging
from collections import defaultdict

from reference_server.errors import RequestError
from reference_server.sparse_log import SparseLog

_log = logging.getLogger("reference_server.api")
_by_status: defaultdict[int, SparseLog] = defaultdict(lambda: SparseLog(_log))


def log_refusal(error: RequestError) -> None:
    """At most one line a second and status.

    A client's own words are not repeated: only messages that are made of our words and of numbers.
    """
    said = error.message if error.own_words else error.kind
    if error.param and not error.own_words:
        said += f" ({error.param})"
    _by_status[error.status].warning(
        "refused with %d: %s (%d refusals since the last line)", error.status, said
    )
