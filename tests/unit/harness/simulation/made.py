"""Result lines as a simulation would write them, with numbers chosen by the test."""

from harness.simulate.run_line import RunLine


def line(variant: str, requester: str = "site-0", seed: int = 0, accuracy=(0.5, 0.75), **changes) -> RunLine:
    rounds = len(accuracy)
    made = RunLine(
        case="made",
        variant=variant,
        requester=requester,
        seed=seed,
        rule="fedavg",
        protection="plain",
        erosion_applies="next_round",
        study_digest="0" * 64,
        data_digest="1" * 64,
        settings={},
        end="completed",
        reason="",
        released_rounds=rounds,
        seconds=36.0,
        kind=("released",) * rounds,
        test_accuracy=tuple(accuracy),
        test_loss=(1.0,) * rounds,
        validation_accuracy=(None,) * rounds,
        model_norm=(1.0,) * rounds,
        requester_norm=(2.0,) * rounds,
        clipped_share=(0.0,) * rounds,
        took_part=(("site-1",),) * rounds,
        alpha={"site-1": (1.0, 0.5)[:rounds]},
        weight={"site-1": (1.0,) * rounds},
        distance={"site-1": (1.0, 3.0)[:rounds]},
        final_model=None,
        versions={"python": "3.11"},
    )
    return made.model_copy(update=changes)
