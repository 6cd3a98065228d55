"""Every rule is needed: a node that lacks one is caught by the simulator within a few hundred schedules.

Not in the list of `mutants`, because no schedule fails without them:

- At most two STATEs are held *at the receiver* (``MAX_HELD`` in ``accept``): honest senders never send a third, which
  every schedule checks at the sender; the check at the receiver bounds what a neighbour that breaks the rules can fill.
- The STATE before must have been sent in this session before the next is sent ahead. It follows from the sign of
  progress: a neighbour that has shown in this session to be at a position has asked for its STATE if it lacked it.
- NEED for a position that is entered between this end's HELLO and the neighbour's: 4,000 schedules did not come to it,
  since two STATEs must be held while the HELLO is written and used up before the other arrives. A run would hang, so it
  has a test of its own (``test_a_position_that_is_entered_between_the_hellos_is_asked_for``).
- Sending ahead at all, and the floor of HELLO's need: without them runs are right and slower
  (``test_without_faults_nothing_is_asked_for``, ``test_a_replay_is_not_answered_with_models``).
- Waiting at the limit on that link alone: waiting on all would be right and slower
  (``test_at_the_limit_one_link_waits_and_says_so_once``).
"""

import pytest
from tests.protocol.mutants import MUTANTS

from dspodfl.protocol.schedules import Settings, check

LIMIT = 400
FROM = {"HELLO's need is no sign of progress": 1500, "frames of other sessions and repeated ones are dropped": 300}
"""Where to begin, for rules that matter in rare schedules only."""


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_node_without_the_rule_is_caught(rule):
    settings = Settings(**MUTANTS[rule])
    first = FROM.get(rule, 0)
    assert any(check(seed, settings).violation is not None for seed in range(first, first + LIMIT))
