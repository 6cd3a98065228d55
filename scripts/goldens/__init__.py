"""Goldens: what small studies gave, to the last bit, before the package was moved.

``python -m scripts.goldens write`` runs every study and writes what it gave to ``tests/goldens``;
``python -m scripts.goldens check [names…]`` runs them again and names each difference. The product is driven by its
command line, and by the public names of ``dspodfl``, alone: a module that moves changes nothing here.
"""
