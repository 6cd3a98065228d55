"""The folder in which ``dspodfl up`` starts nodes."""

import pytest
from tests.edge import tiny

from dspodfl.config import load
from dspodfl.nodes.supervisor import CONFIG, NODES, _Place
from dspodfl.study import build


@pytest.mark.parametrize("given", [{}, {"every_iterations": 7}, {"every_minutes": 10.0}])
def test_nodes_save_by_their_own_defaults_where_nothing_is_given(given, tmp_path):
    config, study = build(tiny(checkpoint=given))
    place = _Place.made(config, tmp_path, 4, overwrite=False)
    for again in (False, True):
        assert not again or place.ready(config, 4)
        found = load(tmp_path / NODES / CONFIG)
        assert found.checkpoint.model_dump(exclude_unset=True) == given
        assert len(found.nodes.peer) == study.settings[0].rates.graph.clients
