"""A node that is drained leaves with the checkpoint that it waited for, however fast its worker is."""

from dspodfl.protocol import Checkpoint, Done, LockstepNode, Plan, Store


def node():
    plan = Plan(0, (1,), lambda k: (), 100, keep=1, every_iterations=None, every_seconds=None)
    made = LockstepNode(plan, Checkpoint(0, "start"))
    made.start(0.0)
    return made


def test_a_worker_that_goes_on_does_not_keep_a_node_from_leaving():
    made = node()
    made.advance(1, "one", 0.0)
    (store,) = made.drain(0.0)
    assert isinstance(store, Store) and store.checkpoint.k == 1
    for k in range(2, 9):
        assert made.advance(k, f"value {k}", 0.0) == []
    assert made.saved(1, 0.0)[-1] == Done("draining", 1) and made.done


def test_a_checkpoint_from_before_the_drain_does_not_count():
    made = node()
    made.advance(1, "one", 0.0)
    (first,) = made.save(0.0)
    assert first.checkpoint.k == 1
    made.advance(2, "two", 0.0)
    assert made.drain(0.0) == []
    (second,) = [effect for effect in made.saved(1, 0.0) if isinstance(effect, Store)]
    assert second.checkpoint.k == 2 and not made.done
    assert made.saved(2, 0.0)[-1] == Done("draining", 2)
