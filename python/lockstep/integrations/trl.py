"""TRL's asynchronous GRPO publishes its weights: ``AsyncGRPOTrainer(..., weight_transfer=WeightTransfer(...))``."""

import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Tuple

from lockstep.core.publication import Publication
from lockstep.core.served import EVERY, Receivers
from lockstep.export import Publisher

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lockstep.export import StreamOptions


class WeightTransfer:
    """TRL's ``WeightTransferProtocol`` (trl.experimental.async_grpo, of TRL 1.16).

    TRL calls it on its first rank, which must be on the agent's host: when training begins, before the first rollout, and
    then every ``weight_sync_steps`` steps. The other ranks only gather. Each call publishes a version with TRL's number
    of the policy as its label. A sample's ``model_version`` must be the label that ``Follower.serving`` and ``Replica``
    then name. Versions of the run count from 1.

    Engines must be there when training begins. They stop only while their receivers write, so ``pause`` does nothing.

    Args:
        model: the model's name, ``[A-Za-z0-9._-]{1,128}``.
        checkpoint: the HuggingFace directory that the trainer's ``model`` comes from, for the headers of its tensors.
        receivers: the trainer goes on when the engines of these serve the version. As for ``Publisher.wait_served``:
            every one that is connected, how many, or which; None waits for none.
        timeout: seconds for that.
        policy: gives the number of the next policy. A trainer that resumes from a checkpoint needs it, because TRL
            counts on there: ``lambda: trainer.model_version + 1``. Else policies count from 1.
        options: of ``Publisher.from_stream``; ``dtype=torch.bfloat16`` for a bfloat16 checkpoint, since TRL trains in float32
            unless its ``dtype`` says otherwise.
    """

    def __init__(
        self,
        model: str,
        checkpoint: "str | os.PathLike[str]",
        *,
        receivers: "Receivers | None" = EVERY,
        timeout: float = 600.0,
        policy: "Callable[[], int] | None" = None,
        **options: "Unpack[StreamOptions]",
    ) -> None:
        self._model, self._checkpoint = model, checkpoint
        self._options = options
        self._receivers, self._timeout = receivers, timeout
        self._publisher: "Publisher | None" = None
        self._sent = 0
        self._policy = policy or (lambda: self._sent)
        self._published: "Publication | None" = None

    def init_weight_transfer(self) -> None:
        """Opens the model at the agent. Raises as ``Publisher.from_stream``."""
        self._opened()

    def pause(self) -> None:
        """Nothing: a receiver pauses its engine, for its writes alone."""

    def send_weights(self, iterator: "Iterable[Tuple[str, Any]]") -> None:
        """Publishes what ``iterator`` gives. Raises as ``Publisher.publish``, when the iterator has ended."""
        publisher = self._opened()
        self._sent += 1
        self._published = publisher.publish(self._policy(), tensors=iterator)

    def resume(self) -> None:
        """Waits until the engines serve what was sent. DeadlineError says which do not, and why."""
        if self._published and self._receivers is not None:
            self._published.wait(receivers=self._receivers, timeout=self._timeout)

    def destroy(self) -> None:
        """Leaves the agent, which serves the last version on."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _opened(self) -> Publisher:
        if self._publisher is None:  # again where train() is called again: TRL opens once, and destroys after each
            self._publisher = Publisher.from_stream(self._checkpoint, model=self._model, **self._options)
            self._sent = max(self._sent, self._publisher.committed_version)
        return self._publisher
