"""What cannot be used is refused: exit code 2, one plain message with field and value, and nothing is written."""

import io
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tests.edge import NAMED, PLACES, TINY_TOML, CommandLine, is_tag

from dspodfl import Config, ConfigError
from dspodfl.network import generators
from dspodfl.ui.cli import app as cli

# --- the table ------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """Command-line words, the files beside them, and what the message must say."""

    words: list[str]
    says: list[str]
    files: dict[str, str | bytes] = field(default_factory=dict)


def change(*changes, says, **files):
    """``dspodfl run study.toml --set …``; names of files have their dot written as two underscores."""
    words = ["run", "study.toml", *(word for text in changes for word in ("--set", text))]
    return Case(words, says, {name.replace("__", "."): content for name, content in files.items()})


def toml(text, says, **files):
    """A configuration file of its own."""
    return Case(["run", "own.toml"], says, {"own.toml": text} | files)


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def safetensors(**tensors):
    from safetensors.torch import save

    return save(tensors)


def graphml(nodes, links, keys="", directed=False):
    kind = "directed" if directed else "undirected"
    return (
        f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}<graph edgedefault="{kind}">'
        + "".join(nodes)
        + "".join(f'<edge source="{a}" target="{b}"/>' for a, b in links)
        + "</graph></graphml>"
    )


NODES = ['<node id="a"/>', '<node id="b"/>']
NUMBERED = '<key id="w" for="node" attr.name="w" attr.type="int"/>'
GRAPH = 'graph={kind="file",file="links.csv"}'
NETWORK = 'graph={kind="file",file="net.graphml"}'
RATES = 'rates.sgd={law="csv",file="rates.csv"}'
LINKS = 'rates.link={law="csv",file="rates.csv"}'
TRACE = 'rates.availability={kind="trace",file="trace.csv",seconds=1}'
NPZ = 'data={name="npz",path="shards"}'
IMAGES = {
    "shards/a.npz": npz(x=np.zeros((2, 3, 32, 32), np.uint8), y=np.array([0, 1])),
    "shards/b.npz": npz(x=np.zeros((2, 3, 32, 32), np.uint8), y=np.array([0, 1])),
    "shards/test.npz": npz(x=np.zeros((2, 3, 32, 32), np.uint8), y=np.array([0, 1])),
}
PAIR = ("clients.count=2", NPZ)
GOOD = npz(x=np.zeros((2, 3)), y=np.array([0, 1]))

VALUES = {
    # seeds and algorithms
    "negative seed": change("seed=-1", says=["seed = -1"]),
    "seed of 2^63": change("seed=9223372036854775808", says=["seed = 9223372036854775808"]),
    "last seed of 2^63": change("seed=9223372036854775807", "seeds=2", says=["seed = 9223372036854775807"]),
    "seed as text": change('seed="zero"', says=["seed = 'zero'", "an integer"]),
    "no seeds": change("seeds=0", says=["seeds = 0"]),
    "seeds as a truth": change("seeds=true", says=["seeds = True", "an integer"]),
    "seeds as a float": change("seeds=1.0", says=["seeds = 1.0", "an integer"]),
    "algorithms as a number": change("algorithms=3", says=["algorithms = 3", "a list"]),
    "no algorithm": change("algorithms=[]", says=["algorithms = []"]),
    "an algorithm that is a number": change("algorithms=[3]", says=["algorithms[0] = 3", "a string"]),
    "an algorithm twice": change('algorithms=["dgd","rg","dgd"]', says=["algorithms = 'dgd'", "once"]),
    "a misspelt algorithm": change('algorithms=["dspodlf"]', says=["algorithms = 'dspodlf'", "did you mean 'dspodfl'"]),
    "a schedule that is no path": change('algorithms=["a b:c"]', says=["algorithms = 'a b:c'"]),
    "a schedule of no module": change(
        'algorithms=["nowhere:thing"]', says=["algorithms = 'nowhere:thing'", "importable"]
    ),
    "a schedule of no name": change('algorithms=["numpy:thing"]', says=["algorithms = 'numpy:thing'", "exists"]),
    "a schedule that is a number": change('algorithms=["numpy:pi"]', says=["algorithms = 'numpy:pi'", "float"]),
    "a schedule that takes other things": change(
        'algorithms=["numpy:sqrt"]', says=["algorithms = 'numpy:sqrt'", "TypeError"]
    ),
    "a schedule whose module raises": change(
        'algorithms=["own_broken:s"]', says=["algorithms = 'own_broken:s'", "ZeroDivisionError"], own_broken__py="1 / 0"
    ),
    "a schedule of something else": change(
        'algorithms=["own_none:s"]', says=["'own_none:s'", "NoneType"], own_none__py="def s(k, part, rates): pass"
    ),
    "a schedule of another shape": change(
        'algorithms=["own_flat:s"]',
        says=["'own_flat:s'", "v of shape (iterations, 4)", "(4,)"],
        own_flat__py="from dspodfl import Events\ndef s(k, part, rates): return Events(part.client > 0, part.link > 0)",
    ),
    # clients and graph
    "no clients": change("clients.count=0", says=["clients.count = 0"]),
    "clients beyond every address": change("clients.count=4294967296", says=["clients.count = 4294967296"]),
    "clients as a float": change("clients.count=4.0", says=["clients.count = 4.0", "an integer"]),
    "clients as a number": change("clients=4", says=["clients = 4", "a table"]),
    "graph as a word": change("graph=ring", says=["graph = 'ring'", "a table"]),
    "an unknown kind of graph": change("graph.kind=rnig", says=["graph.kind = 'rnig'", "did you mean 'ring'"]),
    "a kind of graph that is a list": change('graph.kind=["ring"]', says=["graph.kind", "ring"]),
    "a negative radius": change('graph={kind="geometric",radius=-0.5}', says=["graph.radius = -0.5", "greater than 0"]),
    "a radius that is no number": change('graph={kind="geometric",radius=nan}', says=["graph.radius = nan", "finite"]),
    "an infinite radius": change('graph={kind="geometric",radius=inf}', says=["graph.radius = inf", "finite"]),
    "a radius in words": change('graph={kind="geometric",radius="wide"}', says=["graph.radius = 'wide'", "a number"]),
    "a radius too small": change(
        'graph={kind="geometric",radius=1e-3}', says=["radius = 0.001", "4 clients", "connected"]
    ),
    "links too rare": change('graph={kind="erdos_renyi",p=1e-9}', says=["erdos_renyi", "p = 1e-09", "connected"]),
    "a link never": change('graph={kind="erdos_renyi",p=0}', says=["graph.p = 0"]),
    "a degree that cannot be": change(
        'graph={kind="regular",degree=3}', "clients.count=5", says=["graph.degree = 3", "5"]
    ),
    "a degree as many as clients": change('graph={kind="regular",degree=4}', says=["graph.degree = 4"]),
    "odd neighbours": change('graph={kind="small_world",neighbours=3}', says=["graph.neighbours = 3", "even"]),
    "rows that do not fit": change('graph={kind="grid",rows=3}', says=["graph.rows = 3", "4"]),
    "columns that do not fit": change('graph={kind="torus",columns=3}', says=["graph.columns = 3", "4"]),
    "rows and columns that do not fit": change('graph={kind="grid",rows=2,columns=4}', says=["graph.rows = 2", "4"]),
    "unknown weights": change("graph.weights=metropolitan", says=["graph.weights = 'metropolitan'", "'metropolis'"]),
    "equal neighbours of unequal degrees": change(
        'graph={kind="star",weights="equal_neighbour"}', says=["graph.weights = 'equal_neighbour'", "from 1 to 3"]
    ),
    "equal neighbours that walk": change(
        'graph={kind="geometric",radius=2,weights="equal_neighbour",dynamics={kind="waypoint"}}',
        says=["graph.weights = 'equal_neighbour'", "waypoint"],
    ),
    "allowed or not": change("graph.allow_disconnected=1", says=["graph.allow_disconnected = 1", "true or false"]),
    "a graph's seed": change("graph.seed=-3", says=["graph.seed = -3"]),
    "a graph without its file": change("graph.kind=file", says=["graph.file", "missing", "'file'"]),
    # changing graphs
    "dynamics as a word": change("graph.dynamics=markov", says=["graph.dynamics = 'markov'", "a table"]),
    "unknown dynamics": change(
        "graph.dynamics.kind=bernouli", says=["graph.dynamics.kind = 'bernouli'", "'bernoulli'"]
    ),
    "links that are never up": change('graph.dynamics={kind="bernoulli",up=0}', says=["graph.dynamics.up = 0"]),
    "a chain without an end": change('graph.dynamics={kind="markov",up=0.5}', says=["graph.dynamics.down", "missing"]),
    "a walk of clients without places": change(
        'graph.dynamics={kind="waypoint"}', says=["graph.dynamics.kind = 'waypoint'", "geometric"]
    ),
    "speeds the wrong way round": change(
        'graph={kind="geometric",dynamics={kind="waypoint",speed=[0.2,0.1]}}',
        says=["graph.dynamics.speed = [0.2, 0.1]"],
    ),
    "one speed": change(
        'graph={kind="geometric",dynamics={kind="waypoint",speed=[0.2]}}', says=["graph.dynamics.speed = [0.2]"]
    ),
    "turns without a rhythm": change(
        'graph.dynamics={kind="switching",graphs=[{kind="star"}]}', says=["graph.dynamics.period = None", "times"]
    ),
    "turns with two rhythms": change(
        'graph.dynamics={kind="switching",graphs=[{kind="star"}],period=2,times=[0,3]}',
        says=["graph.dynamics.period = 2", "times (= [0, 3])"],
    ),
    "turns at the wrong times": change(
        'graph.dynamics={kind="switching",graphs=[{kind="star"}],times=[0]}', says=["graph.dynamics.times = [0]"]
    ),
    "turns of nothing": change(
        'graph.dynamics={kind="switching",graphs=[],period=2}', says=["graph.dynamics.graphs = []"]
    ),
    "turns that are no list": change(
        'graph.dynamics={kind="switching",graphs=3,period=2}', says=["graph.dynamics.graphs = 3", "a list"]
    ),
    "a turn with weights of its own": change(
        'graph.dynamics={kind="switching",graphs=[{kind="star",weights="max_degree"}],period=2}',
        says=["graph.dynamics.graphs[0].weights = 'max_degree'"],
    ),
    "a turn of an unknown kind": change(
        'graph.dynamics={kind="switching",graphs=[{kind="strar"}],period=2}',
        says=["graph.dynamics.graphs[0].kind = 'strar'", "did you mean 'star'"],
    ),
    # graphs from files
    "no such file of links": change(GRAPH, says=["graph.file = ", "links.csv", "existing"]),
    "an empty file of links": change(GRAPH, says=["graph.file = ", "links.csv", "at least one client"], links__csv=""),
    "a file of links that is binary": change(
        GRAPH, says=["graph.file = ", "links.csv", "utf-8"], links__csv=b"\xff\xfe\x00"
    ),
    "three names a line": change(GRAPH, says=["graph.file = ", "line 2: '1,2,0.5'"], links__csv="0,1\n1,2,0.5\n"),
    "a link of a client with itself": change(
        GRAPH, says=["graph.file = ", "self-loop at '1'"], links__csv="0,1\n1,1\n"
    ),
    "a graph of other clients": change(GRAPH, says=["clients.count = 4", "3", "links.csv"], links__csv="a,b\nb,c\n"),
    "a disconnected file": change(
        GRAPH, says=["graph = '2 links on 4 clients'", "graph.allow_disconnected = true"], links__csv="0,1\n2,3\n"
    ),
    "an adjacency matrix that is not symmetric": change(
        GRAPH,
        says=["graph.file = ", "links.csv: a link from 0 to 1 and none from 1 to 0'", "symmetric"],
        links__csv="0,1,0,0\n0,0,1,0\n0,0,0,1\n1,0,0,0\n",
    ),
    "a rate above 1 in a file": change(
        'rates.sgd={law="csv",file="r.csv"}',
        says=["rates.sgd.file = '1.5'", "(0, 1]", "of 1 in", "r.csv"],
        r__csv="client,rate\n0,0.5\n1,1.5\n2,0.5\n3,1\n",
    ),
    "a graph by a name that is misspelt": change(
        "graph=rings", says=["graph = 'rings'", "a table with kind, one of geometric, ring,", "did you mean 'ring'?"]
    ),
    "a folder inside a file": Case(
        ["run", "study.toml", "--out", "study.toml/x"], ["out = 'study.toml/x'", "(Not a directory)"]
    ),
    "experiments inside a file": Case(
        ["reproduce", "fmnist-noniid", "--quick", "--out", "study.toml"],
        ["out = 'study.toml/fmnist-noniid'", "(Not a directory)"],
    ),
    "a turn of other clients": change(
        'graph.dynamics={kind="switching",graphs=[{kind="file",file="links.csv"}],period=2}',
        says=["graph.file = ", "links.csv", "4 clients (it has 3)"],
        links__csv="a,b\nb,c\n",
    ),
    "a file in an unknown home": change(
        'graph={kind="file",file="~nobody-at-all/links.csv"}', says=["graph.file = ", "~nobody-at-all/links.csv"]
    ),
    "a GraphML file that breaks off": change(
        NETWORK, says=["graph.file = ", "net.graphml", "GraphML"], net__graphml="<graphml><gra"
    ),
    "a GraphML file without a graph": change(
        NETWORK,
        says=["graph.file = ", "net.graphml"],
        net__graphml='<graphml xmlns="http://graphml.graphdrawing.org/xmlns"/>',
    ),
    "a directed GraphML file": change(
        NETWORK,
        says=["graph.file = ", "net.graphml", "DiGraph", "undirected"],
        net__graphml=graphml(NODES, [("a", "b")], directed=True),
    ),
    "a GraphML file with an unknown type": change(
        NETWORK,
        says=["graph.file = ", "complex"],
        net__graphml=graphml(NODES, [("a", "b")], NUMBERED.replace('"int"', '"complex"')),
    ),
    "a GraphML file with a wrong number": change(
        NETWORK,
        says=["graph.file = ", "many"],
        net__graphml=graphml(['<node id="a"><data key="w">many</data></node>', NODES[1]], [("a", "b")], NUMBERED),
    ),
    # rates
    "an unknown law": change("rates.sgd.law=bta", says=["rates.sgd.law = 'bta'", "did you mean 'beta'"]),
    "a law as a word": change("rates.link=uniform", says=["rates.link = 'uniform'", "a table"]),
    "half a law": change('rates.sgd={law="truncnorm",mean=0.5}', says=["rates.sgd.std", "missing", "'truncnorm'"]),
    "a law with another's key": change('rates.sgd={law="beta",mean=0.5}', says=["rates.sgd.mean = 0.5", "unknown key"]),
    "a negative shape": change("rates.sgd.a=-1", says=["rates.sgd.a = -1"]),
    "a deviation of nothing": change(
        'rates.link={law="truncnorm",mean=0.5,std=0}', says=["rates.link.std = 0", "greater than 0"]
    ),
    "a law beyond floating point": change(
        'rates.sgd={law="truncnorm",mean=1e308,std=1e-300}', says=["rates.sgd.mean = 1e+308", "at most 1e+30"]
    ),
    "a rate of nothing": change('rates.sgd={law="constant",value=0}', says=["rates.sgd.value = 0"]),
    "a rate above one": change('rates.link={law="constant",value=1.5}', says=["rates.link.value = 1.5"]),
    "a rate with an infinite delay": change(
        'rates.sgd={law="constant",value=1e-310}', says=["rates.sgd", "1e-310", "finite"]
    ),
    "no rates": change('rates.sgd={law="list",values=[]}', says=["rates.sgd.values = []"]),
    "too few rates": change('rates.sgd={law="list",values=[0.5]}', says=["rates.sgd.values", "1 values", "4 clients"]),
    "too many rates of links": change(
        'rates.link={law="list",values=[0.5,0.5,0.5,0.5,0.5]}', says=["rates.link.values", "5 values", "4 links"]
    ),
    "one rate of many that is wrong": change(
        'rates.sgd={law="list",values=[0.5,0.5,-1,0.5]}', says=["rates.sgd.values[2] = -1"]
    ),
    "a negative refresh": change("rates.refresh=-1", says=["rates.refresh = -1"]),
    "a refresh beyond every iteration": change("rates.refresh=99999999999", says=["rates.refresh = 99999999999"]),
    "no floor": change("rates.floor=0", says=["rates.floor = 0"]),
    "unknown growth": change("rates.growth=linear", says=["rates.growth = 'linear'", "'learning_rate'"]),
    "an unknown draw": change("rates.link_draw=both", says=["rates.link_draw = 'both'", "'two_sided'"]),
    "an unknown process": change(
        'rates.availability={kind="markv",up=0.1,down=0.1}', says=["rates.availability.kind", "did you mean 'markov'"]
    ),
    "a process as a word": change(
        "rates.churn=markov", says=["rates.churn = 'markov'", "did you mean rates.churn.kind = 'markov'"]
    ),
    "a process by which nobody is absent": change(
        'rates.churn={kind="clocks",rate=1}', says=["rates.churn.kind = 'clocks'", "one of markov, cyclic, trace"]
    ),
    "a chain that never changes": change(
        'rates.availability={kind="markov",up=0,down=0.1}', says=["rates.availability.up = 0", "greater than 0"]
    ),
    "a loss above one": change(
        'rates.channel={kind="gilbert_elliott",up=0.1,down=0.1,loss_bad=2}',
        says=["rates.channel.loss_bad = 2", "at most 1"],
    ),
    "clocks of other clients": change(
        'rates.availability={kind="clocks",rate=[1,2]}', says=["rates.availability.rate", "2 values", "4 clients"]
    ),
    "jobs that take no time": change(
        'rates.availability={kind="stragglers",shift=0.5,rate=1}', says=["rates.availability.shift = 0.5", "at least 1"]
    ),
    "phases of other links": change(
        'rates.channel={kind="cyclic",period=10,share=0.5,phases=[1]}',
        says=["rates.channel.phases", "1 values", "4 links"],
    ),
    "phases of the day of other clients": change(
        "rates.diurnal={period=10,amplitude=0.5,phases=[0.1]}", says=["rates.diurnal.phases", "1 values", "4 clients"]
    ),
    "a deadline that no job meets": change(
        'rates.sgd={law="deadline",deadline=1,shift=2,rate=1}', says=["rates.sgd.deadline = 1", "above 2"]
    ),
    "no such trace": change(TRACE, says=["rates.availability.file = ", "trace.csv", "no such file"]),
    "a trace that goes back in time": change(
        TRACE,
        says=["rates.availability.file = ", "trace.csv", "line 3 has end = 1", "above start = 2"],
        trace__csv="client,start,end\n0,0,1\n1,2,1\n2,0,1\n3,0,1\n",
    ),
    "a trace without a client": change(
        TRACE, says=["rates.availability.file = ", "3 has none"], trace__csv="client,start,end\n0,0,1\n1,0,1\n2,0,1\n"
    ),
    "capacities in words": change(
        'rates.sgd={law="capacities",file="c.csv"}',
        says=["rates.sgd.file = ", "c.csv", "line 2 has compute = 'fast'"],
        c__csv="client,compute,bandwidth\n0,fast,1\n",
    ),
    "no such file of rates": change(RATES, says=["rates.sgd.file = ", "rates.csv", "no such file"]),
    "an empty file of rates": change(RATES, says=["rates.sgd.file = ", "rates.csv"], rates__csv=""),
    "rates with other columns": change(
        RATES, says=["rates.sgd.file = 'columns name,rate'", "client,rate"], rates__csv="name,rate\n0,1\n"
    ),
    "rates of clients for links": change(
        LINKS, says=["rates.link.file = 'columns client,rate'", "source,target,rate"], rates__csv="client,rate\n0,1\n"
    ),
    "rates in words": change(
        RATES, says=["rates.sgd.file = 'fast'", "of 1 in"], rates__csv="client,rate\n0,1\n1,fast\n2,1\n3,1\n"
    ),
    "a client without a rate": change(
        RATES, says=["rates.sgd.file = ", "rates.csv", "3 is missing"], rates__csv="client,rate\n0,1\n1,1\n2,1\n"
    ),
    "a rate without a client": change(
        RATES, says=["rates.sgd.file = ", "7 is not in the graph"], rates__csv="client,rate\n0,1\n1,1\n2,1\n3,1\n7,1\n"
    ),
    "a client with two rates": change(
        RATES, says=["rates.sgd.file = ", "names 2 once"], rates__csv="client,rate\n0,1\n1,1\n2,1\n3,1\n2,0.5\n"
    ),
    "a client whose rate is blank": change(
        RATES, says=["rates.sgd.file = nan", "(0, 1]"], rates__csv="client,rate\n0,1\n1,\n2,1\n3,1\n"
    ),
    "a ragged file of rates": change(
        RATES, says=["rates.sgd.file = ", "line 3"], rates__csv="client,rate\n0,1\n1,1,1\n2,1\n3,1\n"
    ),
    # data
    "an unknown dataset": change("data.name=fminst", says=["data.name = 'fminst'", "did you mean 'fmnist'"]),
    "data as a word": change("data=ridge", says=["data = 'ridge'", "a table"]),
    "data that only Python has": change('data={name="custom"}', says=["data.name = 'custom'", "run(config, data=…)"]),
    "no samples": change("data.samples=0", says=["data.samples = 0"]),
    "one class": change("data.classes=1", says=["data.classes = 1"]),
    "no noise": change("data.noise=0", says=["data.noise = 0"]),
    "a data seed in words": change('data.seed="a"', says=["data.seed = 'a'", "an integer"]),
    "more clients than samples": change("data.samples=3", says=["clients.count = 4", "3"]),
    "more labels than classes": change(
        "data.partition.per_client=5", says=["data.partition.per_client = 5", "from 1 to 4"]
    ),
    "classes that nobody holds": change(
        "clients.count=2", "graph.kind=path", says=["data.partition.per_client = 1", "allow_unused"]
    ),
    "more holders than samples of a class": change(
        "clients.count=40", "data.samples=44", "data.partition.per_client=2", says=["clients.count = 40"]
    ),
    "more shards than samples": change(
        'data.partition={kind="shards",per_client=16}', says=["data.partition.per_client = 16", "15"]
    ),
    "more shared samples than there are": change(
        'data.partition={kind="shared",samples=61}', says=["data.partition.samples = 61", "60"]
    ),
    "a partition as a word": change("data.partition=iid", says=["data.partition = 'iid'", "a table"]),
    "an unknown partition": change(
        "data.partition.kind=labesl", says=["data.partition.kind = 'labesl'", "did you mean 'labels'"]
    ),
    "regression without penalty or samples": change(
        'data={name="ridge",samples=1,l2=0}', says=["data.l2 = 0", "20 dimensions"]
    ),
    "a folder that is not there": change(NPZ, says=["data.path = ", "shards", "no such folder"]),
    "a folder without a client": change(NPZ, says=["data.path = ", "shards"], **{"shards/test.npz": GOOD}),
    "a folder without test samples": change(NPZ, says=["data.path = ", "test.npz"], **{"shards/a.npz": GOOD}),
    "a client's file that is damaged": change(
        *PAIR,
        says=["data.path = ", "b.npz"],
        **{"shards/a.npz": GOOD, "shards/b.npz": GOOD[:100], "shards/test.npz": GOOD},
    ),
    "a client's file without labels": change(
        *PAIR,
        says=["data.path = ", "b.npz", "no array y"],
        **{"shards/a.npz": GOOD, "shards/b.npz": npz(x=np.zeros((2, 3))), "shards/test.npz": GOOD},
    ),
    "a client of another shape": change(
        *PAIR,
        says=["data.path = ", "b.npz", "(4,)"],
        **{"shards/a.npz": GOOD, "shards/b.npz": npz(x=np.zeros((2, 4)), y=[0, 1]), "shards/test.npz": GOOD},
    ),
    "other clients than files": change(
        NPZ, says=["clients.count = 4", "1", "shards"], **{"shards/a.npz": GOOD, "shards/test.npz": GOOD}
    ),
    # models
    "an unknown model": change("model.name=svn", says=["model.name = 'svn'", "did you mean 'svm'"]),
    "a model as a word": change("model=svm", says=["model = 'svm'", "a table"]),
    "a model with another's key": change("model.l2=1.0", says=["model.l2 = 1.0", "unknown key", "'svm'"]),
    "a negative penalty": change('model={name="logistic",l2=-1}', says=["model.l2 = -1"]),
    "no hidden layer": change('model={name="mlp",hidden=[]}', says=["model.hidden = []"]),
    "a hidden layer of nothing": change('model={name="mlp",hidden=[8,0]}', says=["model.hidden[1] = 0"]),
    "images wanted by cnn": change("model.name=cnn", says=["model.name = 'cnn'", "images", "(3,)"]),
    "images wanted by vgg11": change("model.name=vgg11", says=["model.name = 'vgg11'", "images"]),
    "a regression model for classes": change("model.name=linear", says=["model.name = 'linear'", "'synthetic'"]),
    "a classifier for regression": change(
        'data={name="ridge"}', "model.name=svm", says=["model.name = 'svm'", "'ridge'"]
    ),
    "a penalty in two places": change(
        'data={name="ridge"}', 'model={name="linear",l2=0.5}', says=["model.l2 = 0.5", "data.l2 = 0.1"]
    ),
    "an unknown norm": change(
        *PAIR, 'model={name="vgg11",norm="batch"}', says=["model.norm = 'batch'", "'group'"], **IMAGES
    ),
    "weights that are not there": change(
        *PAIR, 'model={name="vgg11",weights="w.pth"}', says=["model.weights = ", "w.pth", "exists"], **IMAGES
    ),
    "weights that are damaged": change(
        *PAIR, 'model={name="vgg11",weights="w.pth"}', says=["model.weights", "w.pth"], **IMAGES, **{"w.pth": b"junk"}
    ),
    "weights of something else": change(
        *PAIR,
        'model={name="vgg11",weights="w.safetensors"}',
        says=["model.weights = ", "w.safetensors", "lacks features.0.weight"],
        **IMAGES,
        **{"w.safetensors": safetensors(weight=torch.zeros(2))},
    ),
    "a factory that is no path": change('model={factory="network"}', says=["model.factory = 'network'"]),
    "a factory of no module": change(
        'model={factory="nowhere:net"}', says=["model.factory = 'nowhere:net'", "nowhere"]
    ),
    "a factory of no name": change('model={factory="numpy:net"}', says=["model.factory = 'numpy:net'"]),
    "a factory that is a number": change('model={factory="numpy:pi"}', says=["model.factory = 'numpy:pi'", "float"]),
    "a factory that raises": change(
        'model={factory="own_raise:net"}',
        says=["model.factory", "own_raise:net", "ZeroDivisionError"],
        own_raise__py="def net(): 1 / 0",
    ),
    "a factory of something else": change(
        'model={factory="own_dict:net"}',
        says=["model.factory", "own_dict:net", "dict"],
        own_dict__py="def net(): return {}",
    ),
    "a factory with batch normalization": change(
        'model={factory="own_norm:net"}',
        says=["model.factory = 'BatchNorm1d'", "GroupNorm"],
        own_norm__py="from torch.nn import *\ndef net(): return Sequential(Linear(3, 4), BatchNorm1d(4))",
    ),
    "a factory with dropout": change(
        'model={factory="own_drop:net"}',
        says=["model.factory = 'Dropout'"],
        own_drop__py="from torch.nn import *\ndef net(): return Sequential(Linear(3, 4), Dropout())",
    ),
    "a factory for other data": change(
        'model={factory="torch.nn:Linear",arguments={in_features=3,out_features=5}}',
        says=["model.factory = 'Linear'", "(2, 4)", "(2, 5)"],
    ),
    "an argument misspelt": change(
        'model={factory="torch.nn:Linear",arguments={in_features=3,out_featurs=4}}',
        says=["out_featurs = 4", "did you mean 'out_features'"],
    ),
    "a loss for other data": change(
        'model={factory="torch.nn:Linear",arguments={in_features=3,out_features=4},loss="squared_error"}',
        says=["model.loss = 'squared_error'", "classification"],
    ),
    # training
    "no iterations": change("train.iterations=0", says=["train.iterations = 0"]),
    "iterations as a float": change("train.iterations=1e3", says=["train.iterations = 1000.0", "an integer"]),
    "iterations beyond every address": change("train.iterations=4294967296", says=["train.iterations = 4294967296"]),
    "no batch": change("train.batch_size=0", says=["train.batch_size = 0"]),
    "a batch by another word": change('train.batch_size="all"', says=["train.batch_size = 'all'", "full"]),
    "a learning rate as a word": change(
        "train.learning_rate=fast", says=["train.learning_rate = 'fast'", "a number or a table"]
    ),
    "a negative learning rate": change("train.learning_rate.value=-1", says=["train.learning_rate.value = -1"]),
    "half a learning rate": change(
        "train.learning_rate.kind=diminishing", says=["train.learning_rate.gamma", "missing", "'diminishing'"]
    ),
    "a step that grows": change(
        'train.learning_rate={kind="step",every=2,factor=2}', says=["train.learning_rate.factor = 2"]
    ),
    "an unknown order": change("train.order=mixed", says=["train.order = 'mixed'", "'combine_then_adapt'"]),
    "a period of nothing": change("train.dfedavg_period=0", says=["train.dfedavg_period = 0", "'auto'"]),
    "an unknown precision": change("train.precision=fp16", says=["train.precision = 'fp16'", "'fp64'"]),
    "tf32 on the CPU": change("train.precision=tf32", says=["train.precision = 'tf32'", "'cpu'"]),
    # evaluation
    "an evaluation never": change("eval.every=0", says=["eval.every = 0"]),
    "a delay of nothing": change("eval.at_delay=[5,0]", says=["eval.at_delay[1] = 0"]),
    "a delay that is no list": change("eval.at_delay=5", says=["eval.at_delay = 5", "a list"]),
    "a target above one": change("eval.targets=[0.5,1.5]", says=["eval.targets[1] = 1.5"]),
    "a target that is no number": change("eval.targets=[nan]", says=["eval.targets[0] = nan"]),
    # checkpoints
    "a checkpoint at less than no iterations": change(
        "checkpoint.every_iterations=-1", says=["checkpoint.every_iterations = -1"]
    ),
    "a checkpoint at half an iteration": change(
        "checkpoint.every_iterations=0.5", says=["checkpoint.every_iterations = 0.5", "an integer"]
    ),
    "a checkpoint before its time": change("checkpoint.every_minutes=-2", says=["checkpoint.every_minutes = -2"]),
    "a checkpoint of which none is kept": change("checkpoint.keep=0", says=["checkpoint.keep = 0"]),
    # keys that do not exist
    "an unknown table": change("grpah.kind=ring", says=["grpah = {'kind': 'ring'}", "did you mean 'graph'"]),
    "an unknown key": change("train.iteratoins=5", says=["train.iteratoins = 5", "did you mean 'iterations'"]),
    "an unknown key of a kind": change("graph.radius=0.4", says=["graph.radius = 0.4", "unknown key", "'ring'"]),
    # --set itself
    "a change without a value": change("seed", says=["--set 'seed'", "table.key=value"]),
    "a change of nothing": change("=3", says=["--set '=3'", "table.key=value"]),
    "an empty change": change("seed=", says=["--set 'seed='", "TOML value"]),
    "a change that is no TOML": change("seeds=[1,", says=["--set 'seeds=[1,'", "TOML value"]),
    "two changes in one": change("seed=1\nseeds=2", says=["--set 'seed=1\\nseeds=2'", "TOML value"]),
    "a change through a value": change(
        "train.iterations.x=3", says=["--set 'train.iterations.x=3'", "train.iterations"]
    ),
}

FILES = {
    "no such configuration": Case(["run", "none.toml"], ["none.toml", "no such file", "dspodfl init"]),
    "a folder as a configuration": Case(["run", "."], ["cannot be read", "directory"]),
    "a configuration that is no TOML": toml("seed = = 3", ["own.toml", "not valid TOML", "line 1"]),
    "a configuration with a key twice": toml("seed = 1\nseed = 2", ["own.toml", "not valid TOML", "overwrite"]),
    "a configuration that is no text": toml(b"seed = \xff\xfe", ["own.toml", "cannot be read", "utf-8"]),
    "an integer of ten thousand digits": toml(f"seed = {'9' * 10_000}", ["own.toml", "not valid TOML"]),
    "two errors at once": toml("seeds = 0\n[graph]\nradius = -1", ["seeds = 0", "graph.radius = -1"]),
    "a file with a zero in its name": toml('[graph]\nkind = "file"\nfile = "a\\u0000b"', ["graph.file = ", "a\\x00b"]),
}

OPTIONS = {
    "an unknown option": Case(["run", "--sed", "1"], ["--sed"]),
    "an unknown command": Case(["rum"], ["rum"]),
    "seeds in words": Case(["run", "study.toml", "--seeds", "many"], ["--seeds", "many"]),
    "no seeds at all": Case(["run", "study.toml", "--seeds", "0"], ["seeds = 0"]),
    "an algorithm that is unknown": Case(
        ["run", "study.toml", "--algorithms", "dgd,dgdd"], ["algorithms = 'dgdd'", "did you mean 'dgd'"]
    ),
    "no algorithm at all": Case(["run", "study.toml", "--algorithms", ","], ["algorithms = []"]),
    "an unknown device": Case(["run", "study.toml", "--device", "gpu"], ["device = 'gpu'"]),
    "a device that is not there": Case(["run", "study.toml", "--device", "cuda"], ["device = 'cuda'", "no such CUDA"]),
    "a device of no number": Case(["run", "study.toml", "--device", "cuda:first"], ["device = 'cuda:first'"]),
    "a folder that exists": Case(
        ["run", "study.toml", "--out", "there"], ["out = 'there'", "--overwrite"], {"there/x": "1"}
    ),
    "a folder that is a file": Case(
        ["run", "study.toml", "--out", "x", "--overwrite"], ["out = 'x'", "a file"], {"x": "1"}
    ),
    "a folder under a file": Case(["run", "study.toml", "--out", "x/deep/er"], ["out = 'x/deep/er'"], {"x": "1"}),
    "a folder that cannot be": Case(["run", "study.toml", "--out", "/proc/none/here"], ["out = '/proc/none/here'"]),
    "a folder with too long a name": Case(["run", "study.toml", "--out", "a" * 300], ["out = 'aaa", "too long"]),
    "nothing to check": Case(["check", "none.toml"], ["none.toml", "no such file"]),
    "a wrong value to check": Case(["check", "study.toml", "--set", "seeds=0"], ["seeds = 0"]),
    "an impossible graph to check": Case(
        ["check", "study.toml", "--set", 'graph={kind="grid",rows=3}'], ["graph.rows = 3"]
    ),
    "a file that init would replace": Case(["init", "study.toml"], ["file = 'study.toml'", "not exist"]),
    "a file that init cannot write": Case(["init", "no/where.toml"], ["file = 'no/where.toml'", "No such file"]),
    "no run to show": Case(["show", "none"], ["none", "summary.json"]),
    "a folder that is no run": Case(["show", "some"], ["some", "summary.json"], {"some/file.txt": ""}),
    "a folder with another summary": Case(["show", "some"], ["some", "setting.npz"], {"some/summary.json": "{}"}),
}

CASES = VALUES | FILES | OPTIONS


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(generators, "ATTEMPTS", 20)
    return CommandLine(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def test_what_cannot_be_used_is_refused_with_field_and_value_and_nothing_is_written(case, dspodfl):
    for name, content in {"study.toml": TINY_TOML, **case.files}.items():
        path = dspodfl.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = dspodfl.written()
    answer = dspodfl(*case.words)
    assert answer.code == 2
    assert answer.out == ""
    assert "Traceback" not in answer.err
    said = " ".join(answer.err.split())
    assert [text for text in case.says if text not in said] == []
    assert dspodfl.written() == before


def test_the_study_of_the_table_is_itself_good(dspodfl):
    (dspodfl.folder / "study.toml").write_text(TINY_TOML)
    assert dspodfl("check", "study.toml").code == 0


def test_a_wrong_value_is_refused_before_anything_is_computed(dspodfl, monkeypatch):
    monkeypatch.setattr("dspodfl.study.session.measure", lambda *_: pytest.fail("the study began"))
    (dspodfl.folder / "study.toml").write_text(TINY_TOML)
    (dspodfl.folder / "there").mkdir()
    assert dspodfl("run", "study.toml", "--out", "there").code == 2


def test_every_line_of_a_message_begins_alike(dspodfl):
    (dspodfl.folder / "study.toml").write_text(TINY_TOML)
    lines = dspodfl("run", "study.toml", "--set", "seeds=0", "--set", "seed=-1").err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("error: ") for line in lines)


def test_a_message_that_the_terminal_cannot_write_is_written_all_the_same(dspodfl, monkeypatch):
    (dspodfl.folder / "study.toml").write_text(TINY_TOML)
    stderr = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(
        "sys.argv", ["dspodfl", "run", "study.toml", "--set", "seed=9223372036854775807", "--set", "seeds=2"]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    stderr.flush()
    assert end.value.code == 2
    assert b"seed = 9223372036854775807" in stderr.buffer.getvalue()


# --- unknown keys, at every level -----------------------------------------------------------------------------

REQUIRED = {
    "SwitchingDynamics": {"graphs": [{"kind": "ring"}], "period": 2},
    "BernoulliDynamics": {"up": 0.5},
    "MarkovDynamics": {"up": 0.5, "down": 0.5},
    "FileGraph": {"file": "links.csv"},
    "TruncnormLaw": {"mean": 0.5, "std": 0.5},
    "BimodalLaw": {"mean1": 0.1, "std1": 0.5, "mean2": 0.1, "std2": 0.5},
    "ConstantLaw": {"value": 0.5},
    "ListLaw": {"values": [0.5]},
    "CsvLaw": {"file": "rates.csv"},
    "Dirichlet": {"alpha": 1.0},
    "Quantity": {"alpha": 1.0},
    "Shared": {"samples": 5},
    "Npz": {"path": "shards"},
    "Factory": {"factory": "package.module:network"},
    "DiminishingRate": {"gamma": 5.0},
    "StepRate": {"every": 5, "factor": 0.5},
}
"""The keys that a table must have."""


def example(table):
    tags = {key: table.model_fields[key].default for key in table.model_fields if is_tag(table, key)}
    for key in tags:
        tags[key] = table.model_fields[key].annotation.__args__[0]
    return tags | REQUIRED.get(table.__name__, {})


@pytest.mark.parametrize(("path", "table"), PLACES, ids=NAMED)
def test_an_unknown_key_is_refused_at_every_level_and_the_nearest_one_is_named(path, table):
    key = max(table.model_fields, key=len)
    misspelt = key[0] + key
    raw = {misspelt: 1, **example(table)}
    for name in reversed(path):
        raw = {name: raw}
    with pytest.raises(ConfigError) as caught:
        Config(**raw)
    said = next(line for line in caught.value.problems if "unknown key" in line)
    assert said.startswith(f"{'.'.join((*path, misspelt))} = 1: ")
    assert f"did you mean {key!r}?" in said
