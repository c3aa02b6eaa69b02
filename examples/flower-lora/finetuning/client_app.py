"""The ClientApp: fine-tunes both matrices of each adapter, sends A, keeps B."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import PeftModel

from finetuning.task import adapters, build, load_data, put
from finetuning.task import test as test_fn
from finetuning.task import train as train_fn

app = ClientApp()


def received(msg: Message, context: Context) -> PeftModel:
    """The model with the shared matrices of the server and this site's own."""
    model = build()
    put(model, msg.content["arrays"].to_torch_state_dict())
    if "personal" in context.state:
        put(model, context.state["personal"].to_torch_state_dict())
    return model


@app.train()
def train(msg: Message, context: Context) -> Message:
    model, site = received(msg, context), context.node_config["partition-id"]
    windows, _ = load_data(site)
    config = msg.content["config"]
    loss = train_fn(model, windows, context.run_config["local-steps"], config["lr"], seed=config["server-round"])

    context.state["personal"] = ArrayRecord(adapters(model, personal=True))  # Flower keeps it here for the next round
    metrics = {"train_loss": loss, "num-examples": len(windows)}
    content = {"arrays": ArrayRecord(adapters(model, personal=False)), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    _, windows = load_data(context.node_config["partition-id"])
    metrics = {"eval_loss": test_fn(received(msg, context), windows), "num-examples": len(windows)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
