"""``moiety simulate``: what a run needs is imported when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from harness.simulate.options import SimilarityOptions, StudyOptions, SummaryOptions
from host.command_line import command

_STUDY: Final = "study"


class _StudyFirst(TyperGroup):
    """``moiety simulate STUDY.TOML`` is ``moiety simulate study STUDY.TOML``; the group's help has its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # typer keeps a click of its own
        named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if named else [_STUDY, *args])

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # typer keeps a click of its own
        super().format_help(ctx, formatter)
        formatter.write_paragraph()
        study = self.commands[_STUDY]
        study.format_help(study.make_context(_STUDY, [], parent=ctx, resilient_parsing=True), formatter)


app = typer.Typer(cls=_StudyFirst, help="Run studies in one process: STUDY.TOML by itself, or one of the commands.")


def _simulate(asked: StudyOptions) -> None:
    from harness.simulate.command import run

    run(asked)


def _rank(asked: SimilarityOptions) -> None:
    from harness.simulate.ranking import print_ranking

    print_ranking(asked)


def _summary(asked: SummaryOptions) -> None:
    from harness.simulate.table_one import print_summary

    print_summary(asked)


simulate = command(StudyOptions, _simulate)
app.command(_STUDY)(simulate)
app.command("rank")(command(SimilarityOptions, _rank))
app.command("summary")(command(SummaryOptions, _summary))


@app.command()
def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    folders: Annotated[list[Path], typer.Argument(metavar="IN...", help="Folders of one case's runs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Merge the runs of several folders of one case, such as shards.

    Example: moiety simulate merge all shard-1 shard-2
    """
    from harness.simulate.command import merge as merge_runs

    merge_runs(out, folders, as_json=as_json)
