"""The whole deploy: `pyinfra inventory.py deploy.py`, or with `--dry` to see what it would do.

Bad data and a box that does not fit are refused before the first change.
"""

from pyinfra import host

from gb10 import interrupt
from gb10.inventory import desired
from gb10.stages import history, image, lanes, models, preflight, record, router, toolkit, verify, watch

interrupt.is_a_failure()
box = desired(host)

box = preflight.check(box)  # the right box, with room, and nobody on our ports
preflight.hold(box)  # no other deploy meanwhile
lanes.retire(box)  # the old vLLM lanes are out
toolkit.install(box)  # NVIDIA container toolkit, pinned; Docker knows the GPU by CDI
image.build(box)  # llama.cpp at one commit, for this GPU
models.fetch(box)  # model files, checked
router.serve(box)  # presets, API key, unit
verify.answer(box)  # a deploy that ends green has answered
history.keep(box)  # what answered can be gone back to; old images are out
watch.install(box)  # a guard that sees a lost GPU and a slow model
record.keep(box)  # what was deployed, for `gb10 drift`; the box looks at itself each night
