"""How code runs, independent of memories: runners, threads, events, the program's log, names of plug-ins."""
