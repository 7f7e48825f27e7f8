"""What is about running and nothing about memory: runners, threads, events, the program's log, names."""
