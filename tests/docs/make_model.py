#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes model.onnx, the BERT that the commands of the documents run on: one layer of 16, as many positions and nearly as many ids as
they ask for. Random weights, the same each time. Needs numpy and onnx.

    make_model.py
"""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tools"), str(HERE.parent / "models")]

import numpy as np

import bert_graph
import make_models


def main():
    weights = make_models.bert_weights(31, layers=1, hidden=16, inner=32, positions=512)
    name = "embeddings.word_embeddings.weight"
    weights[name] = np.random.default_rng(31).normal(0, 0.5, (7600, 16)).astype(np.float32)
    (HERE / "model.onnx").write_bytes(bert_graph.bert(weights, 1, 1).model().SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
