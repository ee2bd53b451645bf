"""Questions on documents: some documents are asked about often, most of them rarely."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from kvprobe.load.job import PlannedRequest
from kvprobe.load.prompt_kinds import LOOKED_AT, Prefix, PromptKind
from kvprobe.load.prompt_texts import Message, Texts
from kvprobe.load.words import NEWLINE
from kvprobe.load.workload import Workload
from kvprobe.load.workload_prompts import RagDocumentsPrompt

_INSTRUCTIONS = 0
"""Number of the text of the instructions; documents count from 1."""


class DocumentKind(PromptKind):
    """Instructions (the same for all), a document by Zipf's law, a question of its own."""

    def __init__(self, workload: Workload, texts: Texts, prompt: RagDocumentsPrompt) -> None:
        super().__init__(workload, texts)
        self._prompt = prompt
        weights = [(rank + 1) ** -prompt.zipf for rank in range(prompt.documents)]
        total = sum(weights)
        self._sums = [s / total for s in accumulate(weights)]

    def document(self, number: int) -> int:
        """Which document measured request `number` asks about, from 0; the same in every run."""
        place = bisect_right(self._sums, self.texts.draw("document of", number))
        return min(place, self._prompt.documents - 1)

    def measured(self, number: int, index: int) -> PlannedRequest:
        document = self.document(number)
        text = self.texts.text("document", document + 1, self._document_tokens(document))
        instructions = self.texts.text("instructions", _INSTRUCTIONS, self._prompt.system_tokens)
        return self._request(index, instructions, text, f"document-{document:05d}", f"question\0{number}")

    def warmup(self, number: int, high: int, index: int) -> PlannedRequest:
        instructions = self.texts.text("warmup", high, self._prompt.system_tokens)
        text = self.texts.text("warmup document", high, self._document_tokens(number))
        return self._request(index, instructions, text, None, f"warmup question\0{number}")

    def aimed_at(self) -> int:
        return min(self.workload.requests or LOOKED_AT, LOOKED_AT)

    def prefixes(self, number: int, index: int) -> tuple[int, list[Prefix]]:
        template = self.texts.template(system=self.texts.chat)
        document = self.document(number)
        between = template.between if self.texts.chat else self.texts.newline_tokens
        instructions = template.before + self._prompt.system_tokens + between
        whole = instructions + self._document_tokens(document) + self.texts.newline_tokens
        tokens = self.measured(number, index).asked_prompt_tokens
        return tokens, [("instructions", instructions), (document, whole)]

    def _document_tokens(self, document: int) -> int:
        return self.texts.length("document", self._prompt.document_tokens, document)

    def _request(
        self,
        index: int,
        instructions: tuple[str, float],
        document: tuple[str, float],
        prefix_id: str | None,
        question_key: str,
    ) -> PlannedRequest:
        texts = self.texts
        wanted = texts.length("question", self._prompt.question_tokens, index)
        question, tokens = texts.question(texts.key(question_key, 0), wanted - texts.newline_tokens)
        text = f"{document[0]}{NEWLINE}{question}"
        worth = document[1] + texts.newline_tokens + tokens
        messages = [Message("system", *instructions), Message("user", text, worth)]
        return texts.planned(index, messages, self.answer_tokens(index), prefix_id=prefix_id)
