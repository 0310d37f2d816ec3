"""Runs one round of a Flower ClientApp, or of a NumPyClient, without a SuperNode.

A ClientApp gets the message of a round of training: in its records are those of Flower's Message API (``arrays``,
``config``) and those of ``client_fn`` (``fitins``). Its ``context.node_config`` and ``context.run_config`` are the
settings' ``config``, with ``data`` (the site's data folder), ``server-round`` and the study's training settings.
"""

import round_task
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, recorddict_to_fitres

TRAIN = "train"
FITRES = "fitres.num_examples"


def name_task():
    """Newer versions of Flower let a message be made in the process of a run alone; this one is its only one."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def config_of(task):
    """Return the configuration for client code."""
    told = task.settings
    return {
        **told["config"],
        "server-round": told["round"],
        "data": told["data"],
        **{name.replace("_", "-"): value for name, value in told["training"].items()},
    }


def by_app(app, task, arrays, config):
    """One message in, one message out."""
    content = fitins_to_recorddict(FitIns(ndarrays_to_parameters(arrays), config), keep_input=True)
    content["arrays"] = ArrayRecord(numpy_ndarrays=arrays)
    content["config"] = ConfigRecord(config)
    message = Message(content=content, dst_node_id=1, message_type=TRAIN, group_id=str(task.settings["round"]))
    context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config=config)
    reply = app(message, context)
    if reply.has_error():
        raise RuntimeError(f"the ClientApp replied with error {reply.error.code}: {reply.error.reason}")
    if FITRES in reply.content.metric_records:
        answer = recorddict_to_fitres(reply.content, keep_input=True)
        if answer.status.code != Code.OK:
            raise RuntimeError(f"the client replied with status {answer.status.code}: {answer.status.message}")
        return parameters_to_ndarrays(answer.parameters)
    found = list(reply.content.array_records.values())
    if len(found) != 1:
        raise RuntimeError(f"the ClientApp replied with {len(found)} array records, expected one: the trained model")
    return found[0].to_numpy_ndarrays()


def main():
    task = round_task.task()
    name_task()
    found = task.app()
    arrays, config = list(task.before().values()), config_of(task)
    if isinstance(found, ClientApp):
        task.finish(by_app(found, task, arrays, config))
        return
    client = found() if isinstance(found, type) else found
    trained, _, _ = client.fit(arrays, config)
    task.finish(trained)


if __name__ == "__main__":
    main()
