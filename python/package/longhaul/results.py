"""Results of `longhaul` as pandas data frames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def read(*files: str | Path) -> pandas.DataFrame:
    """The results in files, in a row each.

    A file has what `longhaul bench … --json` or `longhaul ingest … --json` prints, or a result
    in each line, as `longhaul bench`, `reproduce` and `sim` write them.
    """
    return frame([record for file in files for record in _records(Path(file))])


def frame(records: list[dict[str, Any]]) -> pandas.DataFrame:
    """A data frame of JSON objects, with a row for each.

    Nested objects become columns with dotted names, such as `messages.present`. Of the records of a
    result file, parameters (`point`) and figures (`values`) become columns with their own names;
    rows that did not measure a figure have NaN there.
    """
    import pandas

    return pandas.DataFrame([_row(record) for record in records])


def _records(file: Path) -> list[dict[str, Any]]:
    text = file.read_text()
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        try:
            parsed = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}: neither JSON nor lines of JSON: {error}") from None
    records: list[Any]
    match parsed:
        case {"results": [*results], **of_all}:
            # Of a bench: its machine, for example, is that of each result.
            records = [of_all | one if isinstance(one, dict) else one for one in results]
        case [*records]:
            pass
        case _:
            records = [parsed]
    if not all(isinstance(record, dict) for record in records):
        raise ValueError(f"{file}: results are JSON objects")
    return records


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    row = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            inlined = name in ("point", "values")
            for inner, field in _row(value).items():
                row[inner if inlined else f"{name}.{inner}"] = field
        else:
            row[name] = value
    return row
