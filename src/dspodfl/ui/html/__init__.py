"""One self-contained HTML page about runs, sweeps and reproductions."""
