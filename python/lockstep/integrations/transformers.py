"""transformers' Trainer publishes, and whatever is made of it (TRL's trainers among them):

    trainer = Trainer(..., callbacks=[Publish(model="actor", every=10, dtype=torch.bfloat16)])

Written against transformers 5.22 and accelerate 1.15. Loops of accelerate's own call ``Publisher.from_fsdp(model)`` and
``publish(step)`` themselves, on every rank, with what ``accelerator.prepare`` gives back.
"""

import os
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from lockstep.core.arguments import count
from lockstep.core.publication import Publication
from lockstep.core.served import Receivers
from lockstep.export import Publisher

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lockstep.export import ShardedOptions


class Publish(TrainerCallback):
    """Publishes the model every so many optimizer steps, and at the end of a training, with the step as its label. With
    ``load_best_model_at_end`` the end is the best checkpoint, with that one's step.

    Every rank copies its own shards (FSDP2, tensor parallelism), or its share of a replica (DDP): nothing is gathered. What
    DeepSpeed's ZeRO-3 has partitioned is refused by name; ``Publisher.from_stream`` takes it as it is gathered.

    Args:
        model: the model's name, ``[A-Za-z0-9._-]{1,128}``.
        every: optimizer steps from one version to the next.
        dtype: the checkpoint's dtype of float32 parameters, as of ``lockstep.fsdp``.
        receivers: how many receivers' engines must serve a version, or the names of those that must, before training goes
            on; None waits for none. Rank 0 waits, on the agent's host.
        timeout: seconds for that.
        options: of ``Publisher.from_fsdp``.

    Attributes:
        publication: the last one; None before the first.
    """

    def __init__(
        self,
        *,
        model: str,
        every: int = 1,
        dtype: Any = None,
        receivers: "Receivers | None" = None,
        timeout: "float | None" = 600.0,
        **options: "Unpack[ShardedOptions]",
    ) -> None:
        self._name, self._every, self._dtype, self._options = model, count("every", every, least=1), dtype, options
        self._receivers, self._timeout = receivers, timeout
        self._publisher: "Publisher | None" = None
        self._step: "int | None" = None  # of the weights that this training published last
        self.publication: "Publication | None" = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Opens the model at the agent. Raises as ``Publisher.from_fsdp``."""
        self._step = None
        self._publisher = Publisher.from_fsdp(model, model=self._name, dtype=self._dtype, **self._options)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Publishes when it is time. Raises as ``Publisher.publish``, and ``Publication.wait``."""
        if state.global_step % self._every == 0:
            self._publish(state, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Publishes the weights that the training ends with, and leaves the agent, which serves them on."""
        if self._publisher is None:
            return
        step = state.global_step
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is not None and os.path.isdir(best):  # Trainer has loaded it
            _, _, number = best.rpartition("-")  # checkpoint-<step>
            step = int(number) if number.isdigit() else step
        try:
            if step != self._step:
                self._publish(state, step)
        finally:
            self._publisher.close()
            self._publisher = None

    def _publish(self, state: Any, step: int) -> None:
        if self._publisher is None:
            return
        self._step = step
        self.publication = self._publisher.publish(step)
        if self.publication and self._receivers is not None and state.is_world_process_zero:
            self.publication.wait(receivers=self._receivers, timeout=self._timeout)
