"""What is wrong with the logs, the steps and the options: a user sees all of it at once."""

from __future__ import annotations

from meshwright_called import Refused


class Problems(list[dict[str, str]]):
    """Problems as the program has them."""

    def refuse(
        self, code: str, message: str, hint: str, *, key: str = "--from", place: str = ""
    ) -> None:
        """Adds one. docs/errors.md lists the codes."""
        words = {"code": code, "key": key, "message": message, "hint": hint, "place": place}
        self.append({"stage": "options", **words})

    def raise_if_any(self) -> None:
        """Raises Refused with all of them."""
        if self:
            raise Refused.of(self)
