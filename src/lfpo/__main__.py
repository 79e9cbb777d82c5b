"""`python -m lfpo` is the `lfpo` command."""

from .cli import main

raise SystemExit(main())
