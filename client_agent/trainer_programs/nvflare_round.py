"""Runs a script of NVFlare's Client API for one round: ``flare.receive()`` gives the model, ``flare.send()`` takes it.

No NVFlare system is there: what the script reaches through ``nvflare.client`` is the class below. ``is_running()`` is
true until the model was sent, so a script's loop runs once; the next round runs the script again.
"""

import runpy
import sys

import round_task
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.client.api_spec import CLIENT_API_KEY
from nvflare.client.in_process.api import InProcessClientAPI
from nvflare.fuel.data_event.data_bus import DataBus

SITE = "moiety-site"
STUDY = "moiety-study"
TRAIN = "train"


class OneRound(InProcessClientAPI):
    """The Client API of one round."""

    def __init__(self, task):
        self._task, self._before, self.sent = task, task.before(), False
        self.rank = "0"

    def init(self, rank=None):
        return None

    def receive(self, timeout=None):
        if self.sent:
            return None
        return FLModel(
            params_type=ParamsType.FULL,
            params={name: self._given(value) for name, value in self._before.items()},
            current_round=self._task.settings["round"] - 1,
            total_rounds=self._task.settings["rounds"],
            meta={},
        )

    def send(self, model, clear_cache=True):
        if model.params is None:
            raise ValueError("flare.send() was given a model without params: send what was trained")
        params = model.params
        if model.params_type == ParamsType.DIFF:
            params = {name: self._before[name] + round_task.plain(value) for name, value in params.items()}
        self._task.finish(params)
        self.sent = True

    def system_info(self):
        return {"job_id": STUDY, "site_name": SITE}

    def get_config(self):
        return {"data": self._task.settings["data"], **self._task.settings["training"], **self._task.settings["config"]}

    def get_job_id(self):
        return STUDY

    def get_site_name(self):
        return SITE

    def get_task_name(self):
        return TRAIN

    def is_running(self):
        return not self.sent

    def is_train(self):
        return True

    def is_evaluate(self):
        return False

    def is_submit_model(self):
        return False

    def log(self, key, value, data_type, **kwargs):
        print(f"{key} = {value}")
        return True

    def clear(self):
        return None

    def shutdown(self):
        return None

    def _given(self, value):
        if self._task.settings["tensors"] == "torch":
            import torch

            return torch.from_numpy(value.copy())
        return value.copy()


def main():
    task = round_task.task()
    api = OneRound(task)
    DataBus().put_data(CLIENT_API_KEY, api)
    program = task.settings["program"]
    sys.argv = [program, *task.settings["arguments"]]
    runpy.run_path(program, run_name="__main__")
    if not api.sent:
        raise RuntimeError(f"{program} ended without flare.send()")


if __name__ == "__main__":
    main()
