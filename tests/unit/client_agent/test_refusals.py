"""A site that forbids what the rule opens says so, and no round is begun."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client_agent.contributor.decisions import refused_study, send_refusal
from client_agent.net.watch import Stopped
from client_agent.requester.admission import await_contributors
from client_agent.site.events import EventKind
from client_agent.site.letters import StudyRefusal
from client_agent.study.mail import read_notice, senders
from protocol.errors import BadSignature, Clause, ErrorCode, Unavailable, WrongRound
from protocol.messages.control import RuleName, RuleSpec, Signed, StudyEndState, StudyProtection, StudyView, sign
from protocol.messages.letter import LetterKind, Topic, seal_letter
from protocol.parameters import Needs
from protocol.policy.site_policy import SitePolicy
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.benches import SITE, Bench, RequesterBench, contributor_bench, requester_bench
from tests.unit.client_agent.federation import CONTRIBUTORS, PARAMETERS, REQUESTER, keys, study, study_view

STUDY = study()
DIGEST = STUDY.digest()
MODEL = np.zeros(PARAMETERS.dimension, dtype=np.float32)
STRICT = SitePolicy(may_open=(Needs.NORMS,))
TOPIC = f"refusal/{REQUESTER}"
REFUSAL = Topic(LetterKind.REFUSAL)


def letter_of(folder: Path) -> bytes:
    """The letter of a site with the strict policy, sent twice the same."""
    with contributor_bench(folder, STUDY, MODEL, STRICT) as bench:
        refusal = present(refused_study(bench.contributor))
        send_refusal(bench.contributor, refusal)
        send_refusal(bench.contributor, refusal)
        first, again = bench.servers[Side.A].sent[TOPIC]
    assert first == again
    return first


def view(*mail: str, ready: tuple[str, ...] = ()) -> StudyView:
    return study_view(DIGEST, ready=ready, mail=mail)


def hand_views(bench: RequesterBench, seen: StudyView) -> None:
    for side in Side:
        bench.requester.watch.publish(side, seen)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A site with the strict policy."""
    with contributor_bench(tmp_path, STUDY, MODEL, STRICT) as made:
        yield made


def test_a_refusing_site_is_never_ready_and_says_why_once(bench: Bench) -> None:
    bench.contributor.run()
    bench.contributor.run()
    assert (bench.contributor.state.finished or "").startswith("refused: may_open: ")
    assert len(bench.servers[Side.A].sent[TOPIC]) == 1
    (told,) = [event.text for event in bench.events if event.kind is EventKind.FINISHED]
    assert "opens distances" in told


def test_a_server_that_is_away_gets_the_same_refusal_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    server, tries = bench.servers[Side.A], []
    real = server.put_mail

    def once_away(*arguments: object) -> None:
        tries.append(arguments)
        if len(tries) == 1:
            raise Unavailable("down")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(server, "put_mail", once_away)
    monkeypatch.setattr("client_agent.study.participant.RETRY_S", 0.0)
    bench.contributor.run()
    assert len(tries) == 2
    assert bench.contributor.state.finished is not None


def test_a_study_that_ended_before_the_refusal_came_is_over_for_this_site(bench: Bench) -> None:
    def ended(*_: object) -> None:
        raise WrongRound("the study is failed; nobody reads letters about it any more")

    bench.servers[Side.A].put_mail = ended  # type: ignore[method-assign,assignment]
    bench.contributor.run()
    assert (bench.contributor.state.finished or "").startswith("refused: may_open: ")
    assert bench.texts(EventKind.PROBLEM) == ["the study is failed; nobody reads letters about it any more"]


def test_an_agent_that_stops_before_it_was_heard_refuses_again_later(bench: Bench) -> None:
    def away(*_: object) -> None:
        raise Unavailable("down")

    bench.servers[Side.A].put_mail = away  # type: ignore[method-assign,assignment]
    bench.contributor.context.stop.set()
    with pytest.raises(Stopped):
        bench.contributor.run()
    assert bench.contributor.state.finished is None


def test_the_requester_ends_the_study_and_names_site_and_need(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    sealed = letter_of(folder)
    with requester_bench(tmp_path, STUDY, MODEL) as bench:
        bench.servers[Side.A].mail[TOPIC] = sealed
        assert "opens distances" in read_notice(bench.requester, REFUSAL, SITE, Signed[StudyRefusal]).reason
        hand_views(bench, view(f"refusal/{SITE}", ready=CONTRIBUTORS))
        await_contributors(bench.requester)
        end = present(bench.requester.progress.end)
        assert end.message.state is StudyEndState.FAILED
        assert end.message.reason == (
            "site 'c1' does not let the study's rule open distances about it; no round was begun"
        )
        assert bench.requester.progress.why.startswith("failed: site 'c1' refuses the study: may_open: ")
        assert not bench.requester.progress.alone


def test_a_study_under_ckks_is_refused_unless_the_site_allows_it(tmp_path: Path) -> None:
    under_ckks = STUDY.model_copy(update={"rule": RuleSpec(name=RuleName.FEDAVG), "protection": StudyProtection.CKKS})
    (tmp_path / "willing").mkdir()
    with contributor_bench(tmp_path / "willing", under_ckks, MODEL, SitePolicy(allow_ckks=True)) as bench:
        assert refused_study(bench.contributor) is None
    (tmp_path / "site").mkdir()
    with contributor_bench(tmp_path / "site", under_ckks, MODEL) as bench:
        bench.contributor.run()
        assert (bench.contributor.state.finished or "").startswith("refused: allow_ckks: the study is under CKKS")
        (sealed,) = bench.servers[Side.A].sent[TOPIC]
    with requester_bench(tmp_path, under_ckks, MODEL) as bench:
        bench.servers[Side.A].mail[TOPIC] = sealed
        hand_views(bench, view(f"refusal/{SITE}").model_copy(update={"study_digest": under_ckks.digest()}))
        await_contributors(bench.requester)
        end = present(bench.requester.progress.end)
        assert end.message.state is StudyEndState.FAILED
        assert end.message.reason == "site 'c1' takes no part in a study under CKKS; no round was begun"
        assert "set allow_ckks = true" in bench.requester.progress.why


def test_letters_of_strangers_and_forged_ones_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter that does not open is named as a problem, once; the study begins when all are ready."""
    message = StudyRefusal(
        study_digest=DIGEST, site=SITE, code=ErrorCode.POLICY_REFUSAL, clause=Clause.MAY_OPEN, reason="no"
    )
    forged = sign(message, "c2", keys("c2").signing)
    with requester_bench(tmp_path, STUDY, MODEL) as bench:
        to = bench.requester.requester_party
        bench.servers[Side.A].mail[TOPIC] = seal_letter(forged, "refusal", DIGEST, SITE, to, 0)
        with pytest.raises(BadSignature):
            read_notice(bench.requester, REFUSAL, SITE, Signed[StudyRefusal])
        seen = view(f"refusal/{SITE}", "refusal/stranger", "weights-1/r0", ready=CONTRIBUTORS)
        assert senders(seen, REFUSAL) == (SITE, "stranger")
        hand_views(bench, seen.model_copy(update={"ready": CONTRIBUTORS[:2]}))
        monkeypatch.setattr("client_agent.requester.study._LOOK_AGAIN_S", 0.01)
        later = threading.Timer(0.1, hand_views, (bench, seen))
        later.start()
        await_contributors(bench.requester)
        later.join()
        assert bench.requester.progress.end is None
        (named,) = bench.texts(EventKind.PROBLEM)
        assert "signature of 'c1' is missing" in named


def test_an_agent_that_stops_waits_for_nobody(tmp_path: Path) -> None:
    with requester_bench(tmp_path, STUDY, MODEL) as bench:
        bench.requester.context.stop.set()
        hand_views(bench, view())
        with pytest.raises(Stopped):
            await_contributors(bench.requester)
