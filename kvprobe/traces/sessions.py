"""Sessions and turns of formats that name only a chat's parent, or only the session."""

from __future__ import annotations

from collections import OrderedDict

from kvprobe.traces.formats import RawRow

MAX_REMEMBERED = 1_000_000
"""Chats or sessions that are remembered; the longest unused are forgotten, which bounds the memory."""


class SessionBook:
    """Which session a row belongs to and which of its turns it is, in the order of the file.

    A chat whose parent is not remembered, because it came before the file's first row or too long ago,
    begins a session of its own, named after the parent so that its siblings join it.
    """

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._chats: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self.orphans = 0
        """Rows whose parent is not in the file before them."""

    def place(self, raw: RawRow) -> tuple[str | None, int | None]:
        """(session, turn) of a row; (null, null) where its format has none."""
        if raw.chat is not None:
            return self._chat(raw.chat, raw)
        if raw.session is None:
            return None, None
        turn = raw.turn or self._chats.get(raw.session, ("", 0))[1] + 1
        self._remember(raw.session, raw.session, turn)
        return raw.session, turn

    def _chat(self, chat: str, raw: RawRow) -> tuple[str, int]:
        session, last = chat, 0
        if raw.parent is not None:
            known = self._chats.get(raw.parent)
            self.orphans += known is None
            session, last = known or (raw.parent, 0)
        turn = raw.turn or last + 1
        self._remember(chat, session, turn)
        return session, turn

    def _remember(self, key: str, session: str, turn: int) -> None:
        self._chats[key] = (session, turn)
        self._chats.move_to_end(key)
        while len(self._chats) > self._most:
            self._chats.popitem(last=False)
