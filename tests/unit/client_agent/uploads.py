"""A server that takes contributions, for the unit tests of the agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from client_agent.net.envelopes import Body
from protocol.channel.commitment import MessageDigest
from protocol.channel.signing import DigestField
from protocol.errors import Unavailable
from protocol.messages.control import Receipt, Signed, sign
from protocol.sharing import Side
from tests.unit.client_agent.federation import DIGEST, operator_keys


@dataclass
class UploadServer:
    """Keeps what it is sent; the first ``failures`` answers get lost, ``changes`` are to the receipt."""

    site: str
    side: Side = Side.A
    study_digest: str = DIGEST
    failures: int = 0
    signer: Side | None = None
    changes: dict[str, object] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)

    def contribute(self, name: str, round_number: int, attempt: int, body: Body) -> Signed[Receipt]:
        self.bodies.append(b"".join(body.pieces()))
        taken = MessageDigest()
        taken.update(self.bodies[-1])
        assert (name, taken.digest()) == ("unit", body.digest)
        assert body.digest_field is DigestField.SEALED
        if len(self.bodies) <= self.failures:
            raise Unavailable("lost the answer")
        receipt = Receipt(
            study_digest=self.study_digest,
            round=round_number,
            attempt=attempt,
            site=self.site,
            side=self.side,
            body_digest=body.digest.hex(),
        ).model_copy(update=self.changes)
        operator = operator_keys(self.signer or self.side)
        return sign(receipt, operator.name, operator.signing)
