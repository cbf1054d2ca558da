"""What is told in rows of a name and a text: for a terminal, and for a notebook."""

from __future__ import annotations

from html import escape

#: Columns of the names.
NAMES = 15


class InRows:
    """Something whose `str()` is its rows, below each other, and which a notebook shows as a table.
    A row without a name goes on with the one before.
    """

    def _rows(self) -> list[tuple[str, str]]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(f"{name:<{NAMES}}{text}".rstrip() for name, text in self._rows())

    def _repr_html_(self) -> str:
        """A table, with everything escaped."""
        lines = (
            f'<tr><th style="text-align: left">{escape(name)}</th>'
            f'<td style="text-align: left">{escape(text)}</td></tr>'
            for name, text in self._rows()
        )
        return f"<table>{''.join(lines)}</table>"
