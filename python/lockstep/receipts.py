"""Which weights computed a sample: what the receivers of its engine have signed.

    began = time.time()
    answer = client.completions.create(...)
    receipt = lockstep.receipts.of_sample(lockstep.control.Receiver(), began, time.time(), keys="log.pub")

``lockstepctl log fetch --version`` gives these weights back, as ``receipt.manifest_digest`` names them (docs/howto/replay.md).
"""

import os

from lockstep.control import Receipt, Receiver
from lockstep.core.errors import NotFoundError

__all__ = ["Receipt", "of_sample"]


def of_sample(
    receiver: Receiver,
    began: float,
    ended: float,
    *,
    model: "str | None" = None,
    engine: "str | None" = None,
    keys: "str | os.PathLike[str] | None" = None,
) -> Receipt:
    """The receipt of the only weights that ``engine`` (None: the receiver's only one) served from ``began`` to ``ended``,
    seconds of a clock that is the receiver's. NotFoundError: it served several, was paused in between, or nobody looked.
    Errors also as ``Receiver.receipts``."""
    found = receiver.receipts(model, engine=engine, began=began, ended=ended, keys=keys)
    engines = sorted({one.engine for one in found})
    if len(engines) > 1:
        raise NotFoundError(f"of_sample: several engines served then, name one: {', '.join(engines)}")
    covering = [one for one in found if one.from_unix_ns <= began * 1e9 and ended * 1e9 <= one.to_unix_ns]
    if len(covering) == 1:
        return covering[0]
    versions = ", ".join(f"{one.version} of {one.engine}" for one in found) or "none"
    raise NotFoundError(
        f"of_sample: no engine served one version from {began:.3f} to {ended:.3f}; versions served meanwhile: {versions}"
    )
