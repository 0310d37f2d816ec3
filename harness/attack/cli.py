"""``moiety attack``: a catalogue of named attacks, and experiments that attack whole studies; what they find.

Experiments, and with them torch, are loaded when one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import BaseModel
from rich.table import Table
from typer.core import TyperGroup

from client_agent.cli.tables import console as console_for
from host.command_line import command
from host.output_files import writable
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from harness.attack.attacked_study import AttackedStudy, Setting
    from harness.attack.reconstruction import AttackLine, Prior
    from harness.simulate.case import Case

QUESTIONS: Final = ("norm", "projection", "gap")
TARGETS: Final = (
    *("breast-linear", "breast-mlp", "heart-linear", "heart-mlp", "digits-linear", "digits-mlp"),
    *("mnist-mlp", "mnist-cnn", "heart-noise-little", "heart-noise", "digits-noise-little", "digits-noise"),
)
"""Names in help texts: those of ``leak.Question`` and ``inversion.TARGETS``, which load torch."""


class _Named(TyperGroup):
    """``moiety attack NAME``: every attack of the catalogue is a command, beside those that have options of their own.

    The catalogue is loaded when somebody asks for a name, since it needs servers, agents and torch.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401  # typer keeps a click of its own
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        from harness.attack.catalogue import catalogue, command_of

        if cmd_name not in catalogue():
            near = get_close_matches(cmd_name, (*catalogue(), *self.commands), n=3)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise typer.BadParameter(f"no attack is called {cmd_name!r}; {meant}moiety attack --list names them all")
        return typer.main.get_command(command_of(catalogue()[cmd_name]))


app = typer.Typer(cls=_Named, help="Attack the protocol, and print what holds.")


@app.callback(invoke_without_command=True)
def _attack(
    ctx: typer.Context,
    listed: Annotated[bool, typer.Option("--list", help="List every attack and what should hold.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run every attack, one after the other.")] = False,
    out: Annotated[Path | None, typer.Option(callback=writable, help="File for what was found, as JSON.")] = None,
) -> None:
    """Attack the protocol: --list, --all, or the NAME of one attack.

    Ends with status 1 where a promise does not hold.

    Example: moiety attack --list
    """
    if ctx.invoked_subcommand is not None:
        return
    from harness.attack import catalogue

    if listed:
        catalogue.show_list()
    elif everything:
        raise typer.Exit(catalogue.run_all(out))
    else:
        typer.echo(ctx.get_help())


# --- what commands have in common -------------------------------------------------------------------------------------


def _told(line: BaseModel, text: str, out: Path | None, *, as_json: bool) -> None:
    """Keep a line, and print it or what it says."""
    from harness.simulate.store import append_line

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        append_line(out, line)
    if as_json or text:
        typer.echo(line.model_dump_json() if as_json else text)


def _names(text: str | None, option: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    """All known names where none is given. Raises: ConfigurationError"""
    from harness.simulate.study_files import parse_names

    names = tuple(known) if text is None else parse_names(text, option)
    unknown = [repr(name) for name in names if name not in tuple(known)]
    if unknown:
        raise ConfigurationError(f"{option}: found {', '.join(unknown)}; {what} are {', '.join(known)}")
    return names


@dataclass(frozen=True)
class _OverCase:
    """Options of every attack on a whole study."""

    study_file: Annotated[Path, typer.Argument(help="A case, such as harness/studies/breast_cancer.toml.")]
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas; the case's first one.")] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="At most so many rounds.")] = None
    out: Annotated[Path | None, typer.Option(callback=writable, help="File that the JSON lines are added to.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of tables.")] = False
    only: Annotated[str | None, typer.Option(help="Variants, separated by commas; otherwise the first.")] = None

    def variants(self, case: Case) -> tuple[str, ...]:
        """The variants that are attacked where ``--only`` names none."""
        return case.names[:1]

    def studies(self, setting: Setting | None = None) -> Iterator[AttackedStudy]:
        """Every seed, requester and variant in turn, variants innermost. Raises: ConfigurationError"""
        from harness.attack.attacked_study import AS_IT_IS, AttackedStudy
        from harness.datasets.registry import load_data
        from harness.simulate.case import read_case
        from harness.simulate.case_run import request_for, requesters_of
        from harness.simulate.study_files import parse_names, parse_seeds

        case = read_case(self.study_file)
        requesters = requesters_of(case, load_data(request_for(case, self.data, None, case.table.seeds[0])))
        seeds = case.table.seeds[:1] if self.seeds is None else parse_seeds(self.seeds)
        variants = self.variants(case) if self.only is None else parse_names(self.only, "--only")
        for seed, requester, variant in product(seeds, requesters, variants):
            yield AttackedStudy(case, variant, seed, requester, setting or AS_IT_IS, self.data, self.rounds)

    def told(self, line: BaseModel, text: str) -> None:
        _told(line, text, self.out, as_json=self.as_json)


# --- experiments ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reconstruction(_OverCase):
    """Estimate every site's updates from the sums and lists of each party.

    Example: moiety attack reconstruction harness/studies/breast_cancer.toml
    """


def _reconstruct(asked: _Reconstruction) -> None:
    from harness.attack.reconstruction import attacked_line

    console = console_for(stderr=asked.as_json)
    for attacked in asked.studies():
        line = attacked_line(attacked)
        asked.told(line, "")
        if not asked.as_json:
            head, table = _errors_of_requester(line)
            console.print(head, soft_wrap=True, highlight=False)
            console.print(table)


def _errors_of_requester(line: AttackLine) -> tuple[str, Table]:
    from harness.attack.reconstruction import Prior

    head = (
        f"{line.study}, {line.variant}, requester {line.requester}, seed {line.seed}: {len(line.rounds)} sums over "
        f"{line.lists} different lists; relative error of the requester's estimates, median (least) over rounds"
    )
    table = Table("site", *(prior.value for prior in Prior), box=None)
    for site in line.weight:
        table.add_row(site, *(_cell(line, prior, site) for prior in Prior))
    return head, table


def _cell(line: AttackLine, prior: Prior, site: str) -> str:
    """Nothing for a site that was in no sum."""
    by = line.by((line.requester,), prior)
    errors = () if by is None else sorted(one for one in by.errors.get(site, ()) if one is not None)
    return f"{errors[len(errors) // 2]:.3f} ({errors[0]:.3f})" if errors else ""


@dataclass(frozen=True)
class _Inversion:
    """Invert averages of gradients: read records out of them.

    By rows over biases and by descent, beside guessing.

    Example: moiety attack inversion breast-linear --sites 1,4
    """

    targets: Annotated[str, typer.Argument(help=f"Data and model, separated by commas: {', '.join(TARGETS)}.")]
    sites: Annotated[str, typer.Option(help="Numbers of sites in the average, separated by commas.")] = "1,2,4,8"
    batches: Annotated[str, typer.Option(help="Records of each site, separated by commas.")] = "1,8,32"
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0"
    data: Annotated[Path | None, typer.Option(envvar="MOIETY_DATA", help="Folder of the public data files.")] = None
    out: Annotated[Path | None, typer.Option(callback=writable, help="File that the JSON lines are added to.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")] = False


def _invert(asked: _Inversion) -> None:
    from harness.attack import inversion
    from harness.simulate.study_files import parse_seeds

    by_key = {target.key: target for target in inversion.TARGETS}
    names = _names(asked.targets, "TARGETS", by_key, "data and model")
    counts = product(parse_seeds(asked.sites), parse_seeds(asked.batches), parse_seeds(asked.seeds))
    for target, (sites, batch, seed) in product([by_key[name] for name in names], counts):
        line = inversion.inverted_line(target, sites, batch, seed, asked.data)
        cells = ", ".join(f"{one.how.value} {one.exact:.3f} ({one.close:.3f})" for one in line.attacks)
        head = f"{line.target}, {line.sites} sites of {line.batch} records, seed {line.seed}"
        _told(line, f"{head}: read exactly (closely): {cells}", asked.out, as_json=asked.as_json)


@dataclass(frozen=True)
class _Membership(_OverCase):
    """Tell members from others, after training on half of the records.

    Example: moiety attack membership harness/studies/breast_cancer.toml
    """

    only: Annotated[str | None, typer.Option(help="Variants, separated by commas; otherwise all.")] = None

    def variants(self, case: Case) -> tuple[str, ...]:
        return case.names


def _tell_members(asked: _Membership) -> None:
    from harness.attack.membership import memorised

    for attacked in asked.studies():
        line = memorised(attacked)
        best = max((one.auc for one in line.by_average), default=float("nan"))
        asked.told(
            line,
            f"{line.study}, {line.variant}, seed {line.seed}: accuracy on members {line.known:.3f}, on others "
            f"{line.unknown:.3f}; area under the curve by loss {line.by_loss[-1].auc:.3f}, by the average that "
            f"tells most {best:.3f}",
        )


@dataclass(frozen=True)
class _Differencing(_OverCase):
    """Subtract two sums that differ by one site.

    Compares the error of the difference with the sites' isolation.

    Example: moiety attack differencing harness/studies/breast_cancer.toml
    """

    least: Annotated[int, typer.Option(min=1, help="So many contributors are enough for a sum.")] = 2


def _subtract(asked: _Differencing) -> None:
    from harness.attack.attacked_study import Setting
    from harness.attack.reconstruction import differenced_line

    setting = Setting("asked", {"parameters": {"least_contributors": asked.least}}, least_isolation=0.0)
    for attacked in asked.studies(setting):
        line = differenced_line(attacked)
        asked.told(
            line,
            f"{line.study}, {line.variant}, requester {line.requester}, seed {line.seed}: without {line.site} the "
            f"difference is off by {line.difference:.3f}, the best estimate by {line.achieved:.3f}; isolation said "
            f"{line.predicted:.3f}",
        )


@dataclass(frozen=True)
class _Leak:
    """Falsify products, one question a round, and count leaked bits.

    Example: moiety attack leak --seeds 0-9 --rounds 30
    """

    questions: Annotated[str, typer.Option(help=f"What is asked, separated by commas: {', '.join(QUESTIONS)}.")] = (
        ",".join(QUESTIONS)
    )
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0-39"
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds of the study.")] = 30
    without_clause: Annotated[
        bool, typer.Option("--without-clause", help="The site stays however often it was left out, in this process.")
    ] = False
    out: Annotated[Path | None, typer.Option(callback=writable, help="File that the JSON lines are added to.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")] = False


def _count(given: _Leak) -> None:
    from harness.attack.leak import Asked, Question, leak_line, leaked
    from harness.simulate.study_files import parse_seeds

    names = _names(given.questions, "--questions", Question, "they")
    for asked in (Asked(Question(name), not given.without_clause, given.rounds) for name in names):
        lines = []
        for failures, seed in product(asked.plans, parse_seeds(given.seeds)):
            lines.append(leak_line(asked, failures, seed))
            _told(lines[-1], "", given.out, as_json=given.as_json)
        found = leaked(lines)
        if not given.as_json:
            typer.echo(
                f"{asked.question}: {found} bits about one site's update, mean and standard deviation over "
                f"{found.seeds} seeds; asked in {found.asked:.1f} of {asked.rounds} rounds, {found.failed:.1f} failed "
                f"checks that all sites see, caught in {found.caught} studies"
            )


app.command("reconstruction")(command(_Reconstruction, _reconstruct))
app.command("inversion")(command(_Inversion, _invert))
app.command("membership")(command(_Membership, _tell_members))
app.command("differencing")(command(_Differencing, _subtract))
app.command("leak")(command(_Leak, _count))
