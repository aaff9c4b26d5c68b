"""Troth inside a program of one's own: join a run from a script, with one's own logging, and get the model back.

    python embedding.py run.toml me.key

The same command comes back after a crash; Ctrl-C leaves politely, and the others go on.
"""

import logging
import sys

from safetensors.torch import save_model

import troth

log = logging.getLogger("my-program")


def main(manifest: str, key: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    with troth.join(manifest, identity=key) as run:
        for step in run:
            log.info("step %d of %d: loss %.3f, %d members", step.number, step.of, step.loss, step.members)
            for ban in step.bans:
                log.warning("%s is banned: %s (%s)", ban.peer, ban.reason, ban.evidence)
        model = run.model()  # the task's own nn.Module, weights loaded
    save_model(model, f"{run.me}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
