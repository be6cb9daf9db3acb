"""What callers send and what they are told when something fails: no file but an upload, no text but a sentence of ours."""

from __future__ import annotations

import logging
from typing import Any, Iterator

import gradio as gr
from gradio.exceptions import InvalidPathError
from gradio_client.utils import is_file_obj_with_meta
from pydantic import ValidationError

from macs.view.words import Words, best_language

log = logging.getLogger(__name__)
NOT_UPLOADED = "Only an uploaded file can be used; upload it first, then pass on what the upload returned."  # said to programs alone


class Page(gr.Blocks):
    """gr.Blocks that opens no path and fetches no address that a caller names, and shows no text of an exception.

    Gradio refuses paths too, but names the server's folders in doing so; it would fetch addresses; and its toasts read
    a message, which may hold words of a user, as markup.
    """

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *rest: Any, **named: Any) -> list[Any]:
        """Return the inputs as handlers take them; raises gr.Error with one sentence, the same for every file that is no upload."""
        files = list(_files(inputs))
        if any("://" in str(file["path"]) for file in files):
            raise gr.Error("Send the file itself; addresses are not fetched.", print_exception=False)
        if not all(map(is_file_obj_with_meta, files)):  # gradio would take such a path unchecked
            raise gr.Error(NOT_UPLOADED, print_exception=False)
        try:
            return await super().preprocess_data(block_fn, inputs, *rest, **named)
        except (InvalidPathError, ValidationError):  # outside the uploads, or no file at all
            raise gr.Error(NOT_UPLOADED, print_exception=False) from None

    async def process_api(self, *given: Any, request: Any = None, **named: Any) -> dict[str, Any]:
        """Answer one event; raises gr.Error with one sentence if a handler failed, and writes the exception to the log."""
        try:
            return await super().process_api(*given, request=request, **named)
        except gr.Error:
            raise
        except Exception as error:
            log.exception("An event failed.")
            accepted = getattr(request, "headers", {}).get("accept-language", "")
            raise gr.Error(Words(best_language(accepted))("page_failed", what=type(error).__name__), print_exception=False) from None


def _files(value: Any) -> Iterator[dict[str, Any]]:
    """Yield whatever names a path, anywhere in what a caller sent."""
    if isinstance(value, dict) and "path" in value:
        yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _files(part)
