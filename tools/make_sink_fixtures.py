#!/usr/bin/env python3
"""make_sink_fixtures.py - tests/fixtures/sinks: what TensorBoard's and trackio's own code writes, for test_sinks.

    pip install tensorboard trackio
    python tools/make_sink_fixtures.py tests/fixtures/sinks

Made with tensorboard 2.21.0 and trackio 0.43.0.
"""
import json
import os
import sys

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.record_writer import RecordWriter

out = sys.argv[1]
os.makedirs(out, exist_ok=True)

text = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"), data_class=2)
tensor = TensorProto(dtype=7, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]), string_val=["**prompt**\n\n    1+1=\n".encode()])
events = [
    Event(wall_time=1700000000.25, file_version="brain.Event:2"),
    Event(wall_time=1700000000.25, step=300, session_log=SessionLog(status=SessionLog.START)),
    Event(wall_time=1700000001.5, step=300, summary=Summary(value=[
        Summary.Value(tag="train/loss", simple_value=1.625), Summary.Value(tag="tokens", simple_value=19200.0),
        Summary.Value(tag="train/grad_norm", simple_value=float("nan"))])),
    Event(wall_time=1700000002.0, step=0, summary=Summary(value=[Summary.Value(tag="samples", tensor=tensor, metadata=text)])),
]
with open(os.path.join(out, "events.tfevents"), "wb") as f:
    writer = RecordWriter(f)
    for event in events:
        writer.write(event.SerializeToString(deterministic=True))

from trackio import fragments  # noqa: E402

entry = {"project": "p", "run": "r", "run_id": "0123", "metrics": {"train/loss": 1.5, "a": float("nan"), "b": float("inf"), "c": -float("inf")},
         "step": 3, "timestamp": "2023-11-14T22:13:20.250000+00:00", "config": None, "log_id": "x"}
with open(os.path.join(out, "trackio.jsonl"), "wb") as f:
    f.write(fragments.FragmentWriter.serialize_records([fragments.metric_record(entry)]))
