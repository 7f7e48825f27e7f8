"""The engine: what a log means, written once over any `palimpsest.stores.backend.Backend`.

A session is a place (its home, "session", its name) whose head is the session's: hot what every append moves, cold the
rest. Its home is its own name, or that of the session at the root of its tree of branches; then a place (its own name,
"where", its name) says so. All entries and records of a home are rows of one place (home, "log", ""), by the number of
a log and the seq or revision. Sessions write into logs of their own, and a branch reads those of others up to a seq.

    entry      an entry, as `palimpsest.log.entry.pack` has it; found by its id where that does not tell its place
    record     a record; one that carries a compaction is found by the number of its log
    tokens/C   counts by the counter C: a row has those of up to 32 entries
    figure/N   what else there is of an entry by the name N, such as how often it was fetched
    held       which large contents an entry has

A place (home, "tree", "") is there as soon as a home has more than the session of its name. Its rows of the table
`share` say who reads which log. Large contents are in (home, "large", ""). Items are places of the spaces
"item/NAMESPACE", leases those of "lease". One compare-and-set of heads is the commit of everything.

The modules, none of which imports one above it:

    store, opened               the face: each verb checked, and run where the backend's verbs run
    maintenance                 listings, expiry, scrubbing; loaded with the next three when first asked for
    changing, whole_sessions    commits and redaction; branches, deletion
    loading                     sessions that come in from elsewhere
    erasing                     what an erasure is in each session that has the entries
    destroying                  deletion of a session whose head cannot be read
    trees                       who reads which log, and changes of what several sessions have
    queues, appends             where appends meet; what writes them
    counting                    counts of tokens, and other figures of entries
    reading, large              entries with their counts, records; large contents
    items                       items and leases
    sessions, crowds            sessions looked at, remembered and written; who waits when many write
    known, forms                a session as it is known; what stands in rows and heads
"""
