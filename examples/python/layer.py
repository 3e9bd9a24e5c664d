"""A layer of PyTorch that multiplies with a fixed sparse matrix: a graph convolution, trained on
labels of a few vertices.

    python layer.py [--small]
"""

import sys

import numpy as np
import scipy.sparse as sp
import sparseop


def main(scale):
    try:
        import torch
    except ImportError:
        print("skipped: needs torch")
        return
    from sparseop.torch import SparseLinear

    device = "cuda" if torch.cuda.is_available() and sparseop.why_no_gpu() is None else "cpu"
    graph = sparseop.gallery(f"rmat,scale={scale},values=pattern", dtype="float32")
    graph = graph + graph.T + sp.eye_array(graph.shape[0], dtype="float32")
    scaling = sp.diags_array(1 / np.sqrt(graph.sum(axis=1)))
    mean = (scaling @ graph @ scaling).tocsr().astype("float32")

    torch.manual_seed(1)
    n, classes = graph.shape[0], 4
    spread = SparseLinear(sparseop.auto(mean, device=device, transpose=True))
    features = torch.randn(n, 16, device=device)
    labels = (spread(features)[:, :classes]).argmax(dim=1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), spread, torch.nn.Linear(32, classes))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    print(f"{spread.op}: loss {losses[0]:.3f}, after training {losses[-1]:.3f}")
    assert losses[-1] < losses[0] / 2


if __name__ == "__main__":
    main(9 if "--small" in sys.argv else 15)
