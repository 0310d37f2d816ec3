"""The same as flower_client.py, written for Flower's Message API."""

from flower_client import Regression
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = message.content["arrays"].to_numpy_ndarrays()
    trained, examples, _ = Regression(context.node_config["data"]).fit(arrays, message.content["config"])
    content = RecordDict({"arrays": ArrayRecord(numpy_ndarrays=trained)})
    content["metrics"] = MetricRecord({"num-examples": examples})
    return Message(content=content, reply_to=message)
