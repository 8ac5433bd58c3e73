#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the ONNX graph of a BERT from its safetensors weights, as PyTorch's TorchScript exporter would.

    make_minilm.py FOLDER MODEL.onnx      FOLDER holds model.safetensors and config.json

Needs numpy and onnx, no torch. Made for all-MiniLM-L6-v2; any BertModel with GELU and absolute positions will do.
"""
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np

from bert_graph import bert

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}


def read_safetensors(path):
    """Name to array: 8 bytes of header size, a JSON header, then the data."""
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        if t["dtype"] not in DTYPES:
            raise SystemExit(f"{path}: tensor '{name}' is {t['dtype']}; convert the weights to F32 first")
        begin, end = t["data_offsets"]
        a = np.frombuffer(data[8 + size + begin:8 + size + end], np.dtype(DTYPES[t["dtype"]]).newbyteorder("<"))
        out[name.removeprefix("bert.")] = a.reshape(t["shape"])
    return out


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__.strip())
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
        raise SystemExit(f"{folder}/config.json: not a BERT with GELU; export the model with torch.onnx.export instead")
    weights = {n: w.astype(np.float32) if w.dtype.kind == "f" else w
               for n, w in read_safetensors(folder / "model.safetensors").items()}
    graph = bert(weights, config["num_hidden_layers"], config["num_attention_heads"], config["layer_norm_eps"])
    temporary = target.with_name(target.name + f".tmp.{os.getpid()}")
    temporary.write_bytes(graph.model().SerializeToString())
    temporary.replace(target)
    counts = graph.op_counts()
    print(f"{target}: {sum(counts.values())} nodes, {len(counts)} operators, {target.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
