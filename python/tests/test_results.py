"""Results as data frames."""

import json

import pytest

from longhaul import results

pytest.importorskip("pandas")


def test_records_of_a_result_file(tmp_path):
    file = tmp_path / "results.jsonl"
    records = [
        {
            "experiment": "datapath",
            "source": "measured",
            "point": {"box": "near", "payload_bytes": size},
            "values": {"goodput_bps": rate} | more,
            "provenance": {"host": "a", "threads": 2},
        }
        for size, rate, more in [(1024, 1e9, {}), (4096, 4e9, {"drops": 3})]
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    frame = results.read(file)
    assert list(frame["payload_bytes"]) == [1024, 4096]
    assert list(frame["goodput_bps"]) == [1e9, 4e9]
    assert frame["drops"].isna().tolist() == [True, False]
    assert frame["provenance.threads"].unique() == [2]
    assert frame.groupby("box")["goodput_bps"].max()["near"] == 4e9


def test_output_of_a_bench(tmp_path):
    file = tmp_path / "bench.json"
    of_points = [
        {"point": {"operation": name}, "values": {"goodput_bps": rate}, "drops": 0}
        for name, rate in [("write", 3e9), ("send", 2e9)]
    ]
    file.write_text(
        json.dumps({"schema": "longhaul-rnic/1", "machine": {"cores": 2}, "results": of_points})
    )
    frame = results.read(file)
    assert list(frame["operation"]) == ["write", "send"]
    assert list(frame["goodput_bps"]) == [3e9, 2e9]
    assert frame["machine.cores"].tolist() == [2, 2] and frame["drops"].sum() == 0


def test_summaries_of_ingest(tmp_path):
    for name, present in [("a", 100), ("b", 99)]:
        text = json.dumps({"elapsed_s": 1.5, "messages": {"present": present, "lost": 1}}, indent=2)
        (tmp_path / name).write_text(text)
    frame = results.read(tmp_path / "a", tmp_path / "b")
    assert list(frame["messages.present"]) == [100, 99]


def test_what_is_no_result(tmp_path):
    file = tmp_path / "file"
    for text, said in [("x", "neither JSON nor lines"), ("3", "JSON objects"), ("[1]", "objects")]:
        file.write_text(text)
        with pytest.raises(ValueError, match=said):
            results.read(file)
