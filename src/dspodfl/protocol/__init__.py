"""Nodes as pure state machines: what a node does when a message arrives, a timer is due, or its worker is ready.

Nothing here opens a socket, reads a clock, touches a file, starts a thread or draws a number of its own: inputs are
method calls with the time as an argument, and what is to be done comes back as a list of effects. `dspodfl.nodes`
carries them out over a real network; the seeded simulator of this room carries them out in exact arithmetic with every
fault (``python -m dspodfl.protocol.check``).

- For every clock: `messages`, `session` (names, counters of frames, signs of life), `hello` (refusals), `effects`.
- Lockstep: `plan` (who fires when), `lockstep_link` (what is kept, held and sent), `lockstep_node` (inputs of network
  and worker), `lockstep_saving` (checkpoints, and the end of a run).
- The simulator: `exact` (a problem in integers and its plain loop), `simulated_process`, `simulated_world`,
  `simulated_faults`, `schedules` (drawn from a seed), `check` (the command).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
