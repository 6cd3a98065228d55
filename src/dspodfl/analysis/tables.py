"""Tables as data: columns, rows, one sentence and notes. The terminal, a notebook, the report and CSV show the same."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Column:
    """A column; its head may have several lines."""

    head: str
    left: bool = False

    @property
    def line(self) -> str:
        """The head on one line."""
        return " ".join(self.head.split())


@dataclass(frozen=True)
class Row:
    """A line of cells, as they are shown; ``remark`` belongs to the first of them."""

    cells: tuple[str, ...]
    remark: str = ""


@dataclass(frozen=True)
class Table:
    r"""A table with a sentence that sums it up, and a caption that explains its numbers.

    >>> table = Table("A study", (Column("algorithm", left=True), Column("accuracy")), (Row(("DGD", "0.568")),))
    >>> table.to_csv()
    'algorithm,accuracy\nDGD,0.568\n'
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    sentence: str = ""
    """The result in one sentence."""
    caption: str = ""
    """What its numbers are."""
    notes: tuple[str, ...] = ()
    """What should be known of single rows."""

    def to_html(self) -> str:
        """Return the table as a fragment of HTML, every text escaped."""
        heads = "".join(f"<th{_align(column)}>{_lines(column.head)}</th>" for column in self.columns)
        rows = "".join(f"<tr>{self._html_cells(row)}</tr>" for row in self.rows)
        below = [self.sentence, self.caption, *self.notes]
        paragraphs = "".join(f"<p>{escape(text)}</p>" for text in below if text)
        title = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        table = f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        return f"<div>{table}{paragraphs}</div>"

    def _html_cells(self, row: Row) -> str:
        remark = f"<br><small>{escape(row.remark)}</small>" if row.remark else ""
        first = f"<th{_align(self.columns[0])}>{_lines(row.cells[0])}{remark}</th>"
        pairs = zip(self.columns[1:], row.cells[1:], strict=True)
        return first + "".join(f"<td{_align(column)}>{_lines(cell)}</td>" for column, cell in pairs)

    def to_csv(self) -> str:
        """Return columns and rows as CSV, the cells as they are shown; remarks are a column of their own."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        remarks = any(row.remark for row in self.rows)
        writer.writerow([column.line for column in self.columns] + ["remark"] * remarks)
        for row in self.rows:
            writer.writerow([" ".join(cell.split()) for cell in row.cells] + [row.remark] * remarks)
        return buffer.getvalue()


def _align(column: Column) -> str:
    return f' style="text-align:{"left" if column.left else "right"}"'


def _lines(text: str) -> str:
    return escape(text).replace("\n", "<br>")
