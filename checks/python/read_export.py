"""Reads an exported file with an independent reader and prints what it holds as JSON.

Exits with 77 and the missing module if the reader is not installed.
"""

import csv
import io
import json
import sys


def missing(module):
    print(module)
    sys.exit(77)


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def read_parquet(file):
    try:
        from pyarrow import BufferReader, parquet
    except ImportError:
        missing("pyarrow")
    table = parquet.read_table(BufferReader(file))
    return {
        "types": {field.name: str(field.type) for field in table.schema},
        "rows": table.to_pylist(),
    }


def read_openmetrics(text):
    try:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families
    except ImportError:
        missing("python3-prometheus-client")
    families = text_string_to_metric_families(text)
    return [
        {
            "name": family.name,
            "type": family.type,
            "unit": family.unit,
            "samples": [
                [sample.labels, sample.value, float(sample.timestamp) if sample.timestamp else None]
                for sample in family.samples
            ],
        }
        for family in families
    ]


STREAM = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "throughput-bits": {"type": "number"},
        "throughput-bytes": {"type": "number"},
        "receiver-throughput-bits": {"type": "number"},
        "sent": {"type": ["integer", "null"]},
        "lost": {"type": ["integer", "null"]},
        "jitter": {"type": ["number", "null"]},
        "stream-id": {"type": ["string", "integer"]},
        "start": {"type": "number"},
        "end": {"type": "number"},
        "rtt": {"type": ["number", "null"]},
        "tcp-window-size": {"type": ["integer", "null"]},
        "retransmits": {"type": ["integer", "null"]},
        "omitted": {"type": "boolean"},
    },
}
STREAMS = {
    "type": "object",
    "properties": {"streams": {"type": "array", "items": STREAM}, "summary": STREAM},
}
# The result of pscheduler's throughput test, schema 1.
THROUGHPUT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["succeeded", "diags", "intervals", "summary"],
    "properties": {
        "schema": {"type": "integer", "minimum": 1},
        "succeeded": {"type": "boolean"},
        "error": {"type": "string"},
        "diags": {"type": "string"},
        "mss": {"type": "integer"},
        "mtu": {"type": "integer"},
        "tcp-window-size": {"type": "integer"},
        "requested-tcp-window-size": {"type": "integer"},
        "intervals": {"type": "array", "items": STREAMS},
        "summary": STREAMS,
    },
}
# What perftest's --out_json writes of a test.
PERFTEST = {
    "type": "object",
    "additionalProperties": False,
    "required": ["test_info", "results"],
    "properties": {
        "test_info": {
            "type": "object",
            "required": ["test", "Number_of_qps", "Connection_type"],
            "properties": {"test": {"pattern": "^(RDMA_Write|RDMA_Read|Send|Atomic).*_Test$"}},
        },
        "results": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}


def read_json(schema):
    def read(text):
        document = json.loads(text)
        try:
            import jsonschema
        except ImportError:
            missing("python3-jsonschema")
        jsonschema.Draft4Validator(schema).validate(document)
        return document

    return read


READERS = {
    "csv": read_csv,
    "openmetrics": read_openmetrics,
    "perftest-json": read_json(PERFTEST),
    "pscheduler": read_json(THROUGHPUT),
}

if __name__ == "__main__":
    if sys.argv[1] == "parquet":
        print(json.dumps(read_parquet(sys.stdin.buffer.read())))
    else:
        print(json.dumps(READERS[sys.argv[1]](sys.stdin.read())))
