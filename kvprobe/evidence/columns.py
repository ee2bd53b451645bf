"""The parquet files of a run: structs to columns and back.

The columns of `requests.parquet` are the fields of `RequestRecord` in their order, so a new field
becomes a new column. Integers are int64 and nullable. pandas would turn a column of integers with
gaps into floats, which above 2**53 ns (104 days of uptime) are no longer exact; the file therefore
carries pandas' own schema note, and `pandas.read_parquet(path)` gives `Int64` columns.
pandas itself is never imported here and pyarrow only inside the functions.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import open_regular

ROW_GROUP_ROWS = 50_000


def write_requests(path: Path, records: list[RequestRecord]) -> None:
    """Write and fsync `requests.parquet`. OSError when the disk refuses."""
    fields = {name: _kind(hint) for name, hint in get_type_hints(RequestRecord).items()}
    rows = {name: [getattr(record, name) for record in records] for name in fields}
    _write(path, fields, rows)


def write_samples(path: Path, samples: list[Sample]) -> None:
    """Write and fsync `samples.parquet`: t_ns, metric, labels (JSON, sorted keys), value."""
    fields = {"t_ns": "int64", "metric": "string", "labels": "string", "value": "float64"}
    rows: dict[str, list[Any]] = {
        "t_ns": [sample.t_ns for sample in samples],
        "metric": [sample.metric for sample in samples],
        "labels": [labels_json(sample.labels) for sample in samples],
        "value": [sample.value for sample in samples],
    }
    _write(path, fields, rows)


def read_requests(path: Path) -> list[RequestRecord]:
    """The rows of `requests.parquet`; unknown columns are ignored. ValueError when damaged."""
    try:
        return [msgspec.convert(row, RequestRecord) for row in _read(path)]
    except msgspec.ValidationError as exc:
        raise ValueError(f"{path} is not a requests.parquet of kvprobe: {exc}") from exc


def read_samples(path: Path) -> list[Sample]:
    """The rows of `samples.parquet`. ValueError when damaged."""
    labels = msgspec.json.Decoder(dict[str, str])
    seen: dict[str, dict[str, str]] = {}
    samples = []
    try:
        for row in _read(path):
            text = row["labels"]
            if text not in seen:
                seen[text] = labels.decode(text)
            samples.append(
                Sample(t_ns=row["t_ns"], metric=row["metric"], labels=seen[text], value=row["value"])
            )
    except (KeyError, TypeError, msgspec.DecodeError) as exc:
        raise ValueError(f"{path} is not a samples.parquet of kvprobe: {exc!r}") from exc
    return samples


def labels_json(labels: dict[str, str]) -> str:
    """Labels as a JSON object with sorted keys, so that equal label sets are equal strings."""
    return json.dumps(labels, sort_keys=True, separators=(",", ":"))


def _kind(hint: Any) -> str:
    """The column kind of a field's type: int64, string, bool or list<int64>, null set aside."""
    options = [option for option in get_args(hint) if option is not type(None)] or [hint]
    if hint == list[int]:
        return "list<int64>"
    if options == [int] or hint is int:
        return "int64"
    return "bool" if hint is bool else "string"


def _write(path: Path, fields: dict[str, str], rows: dict[str, list[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "int64": pa.int64(),
        "float64": pa.float64(),
        "string": pa.string(),
        "bool": pa.bool_(),
        "list<int64>": pa.list_(pa.int64()),
    }
    schema = pa.schema([pa.field(name, types[kind]) for name, kind in fields.items()])
    schema = schema.with_metadata({b"pandas": json.dumps(_pandas_note(fields)).encode()})
    arrays = [_array(pa, rows[name], types[kind]) for name, kind in fields.items()]
    with open(path, "wb") as file:
        table = pa.Table.from_arrays(arrays, schema=schema)
        pq.write_table(table, file, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        file.flush()
        os.fsync(file.fileno())


def _array(pa: Any, values: list[Any], kind: Any) -> Any:
    try:
        return pa.array(values, type=kind)
    except OverflowError:
        # A foreign number (a token count beyond 64 bits) is as good as none.
        return pa.array([_in_range(value) for value in values], type=kind)


def _in_range(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_range(item) for item in value]
    return value if value is None or -(2**63) <= value < 2**63 else None


def _read(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_regular(path) as file:
        try:
            rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
        except (pa.ArrowException, OSError) as exc:
            raise ValueError(f"{path} is damaged: {exc}") from exc
    return rows


def _pandas_note(fields: dict[str, str]) -> dict[str, Any]:
    """The note that pandas reads to choose column types (pandas' developer documentation,
    "Storing pandas DataFrame objects in Apache Parquet format")."""
    numpy_types = {"int64": "Int64", "float64": "float64", "bool": "bool"}
    pandas_types = {"string": "unicode", "list<int64>": "list[int64]"}
    return {
        "index_columns": [],
        "column_indexes": [],
        "columns": [
            {
                "name": name,
                "field_name": name,
                "pandas_type": pandas_types.get(kind, kind),
                "numpy_type": numpy_types.get(kind, "object"),
                "metadata": None,
            }
            for name, kind in fields.items()
        ],
        "pandas_version": "2.2.0",
    }
