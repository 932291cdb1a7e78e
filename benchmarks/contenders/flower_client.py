"""What a Flower client does; in its own module so that Ray's workers import it by name."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from benchmarks.training import train_client
from benchmarks.workloads import WORKLOADS, Data, Workload, load

app = ClientApp()


@functools.lru_cache(maxsize=1)
def _prepared(name: str) -> tuple[Workload, Data, nn.Module]:
    """Loaded once per worker, as Flower's own examples cache their partitions."""
    torch.set_num_threads(1)
    return WORKLOADS[name], load(name), WORKLOADS[name].model()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch on the client whose number is the node's partition."""
    workload, data, model = _prepared(str(message.content["config"]["workload"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    size = train_client(workload, data, model, int(context.node_config["partition-id"]))
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": size}),
        }
    )
    return Message(content=content, reply_to=message)
