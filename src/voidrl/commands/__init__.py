"""One file for each group of commands; `voidrl.cli` lists them. None imports torch before it has to."""
