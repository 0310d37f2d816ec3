"""Makes an NVFlare job of averaging numpy vectors and hands it in as the project's admin.

``nvflare_job.py {plain|he} ADMIN_FOLDER JOBS_FOLDER PARAMETERS CLIENTS ROUNDS MARKS``, in NVFlare's environment.
"""

import sys
from pathlib import Path

import numpy as np
from nvflare import FedJob, FilterType
from nvflare.apis.dxo import DataKind
from nvflare.app_common.aggregators import InTimeAccumulateWeightedAggregator
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.shareablegenerators import FullModelShareableGenerator
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

SITE = Path(__file__).with_name("nvflare_site.py")


def make(kind: str, folder: Path, parameters: int, clients: int, rounds: int, marks: str) -> Path:
    """The job's folder."""
    job = FedJob(name=f"peer_{kind}", min_clients=clients)
    first = folder / "first.npy"
    np.save(first, np.zeros(parameters, dtype=np.float32))
    if kind == "he":
        from nvflare.app_opt.he.intime_accumulate_model_aggregator import HEInTimeAccumulateWeightedAggregator
        from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
        from nvflare.app_opt.he.model_encryptor import HEModelEncryptor
        from nvflare.app_opt.he.model_serialize_filter import HEModelSerializeFilter
        from nvflare.app_opt.he.model_shareable_generator import HEModelShareableGenerator

        job.to_server(HEModelSerializeFilter(), id="serialize")
        generator, aggregator = (
            HEModelShareableGenerator(),
            HEInTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS, weigh_by_local_iter=False),
        )
        persistor = NPModelPersistor(source_ckpt_file_full_name=str(first))
    else:
        generator = FullModelShareableGenerator()
        aggregator = InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS)
        persistor = NPModelPersistor(source_ckpt_file_full_name=str(first))
    controller = ScatterAndGather(
        min_clients=clients,
        num_rounds=rounds,
        wait_time_after_min_received=0,
        aggregator_id=job.to_server(aggregator, id="aggregator"),
        persistor_id=job.to_server(persistor, id="persistor"),
        shareable_generator_id=job.to_server(generator, id="generator"),
        persist_every_n_rounds=0,
    )
    job.to_server(controller)
    job.to_clients(ScriptRunner(script=str(SITE), script_args=marks, framework=FrameworkType.NUMPY))
    if kind == "he":
        job.to_clients(HEModelDecryptor(), tasks=["train"], filter_type=FilterType.TASK_DATA)
        job.to_clients(HEModelEncryptor(), tasks=["train"], filter_type=FilterType.TASK_RESULT)
    job.export_job(str(folder))
    return folder / f"peer_{kind}"


def main() -> None:
    kind, admin, jobs, parameters, clients, rounds, marks = sys.argv[1:]
    job = make(kind, Path(jobs), int(parameters), int(clients), int(rounds), marks)
    session = new_secure_session("admin@nvidia.com", admin)
    try:
        print(f"job {session.submit_job(str(job))}")
    finally:
        session.close()


if __name__ == "__main__":
    main()
