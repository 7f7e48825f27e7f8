"""The engine: what a log means, written once over any `palimpsest.stores.backend.Backend`.

A session is a place (its home, "session", its name). The place's head is the session's head: the hot value holds what
every append changes, the cold value holds the rest. The home is named after the session itself, or after the session at
the root of its tree of branches; in the latter case a pointer at (its own name, "where", its name) says which home it
is in. All entries and records of a home are rows of one place (home, "log", ""), keyed by the number of a log and the
seq or revision. Each session writes to a log of its own; a branch also reads other sessions' logs, each up to some seq.

    entry      an entry, as `palimpsest.log.entry.pack` stores it; indexed by its id if the id does not encode its seq
    record     a record; those that carry a compaction are indexed by the number of their log
    tokens/C   token counts by the counter C; one row holds the counts of up to 32 entries
    figure/N   another figure of an entry, under the name N, such as how often it was fetched
    held       which large contents an entry refers to

The place (home, "tree", "") exists as soon as a home has more than the session it is named after. The rows of its table
`share` say which session reads which log. Large contents are in (home, "large", ""). Items are places of the spaces
"item/NAMESPACE", leases places of the space "lease". Every commit is one compare-and-set of heads.

The modules, from top to bottom; none imports a module above it:

    store, opened               the face: checks each verb, and runs it where the backend's verbs run
    maintenance                 listings, expiry, scrubbing; loaded on first use, together with the next three
    changing, whole_sessions    commits and redaction; branches, deletion
    loading                     sessions that come in from elsewhere
    erasing                     what an erasure does in each session that has the entries
    destroying                  deletion of a session whose head cannot be read
    trees                       who reads which log, and changes to entries that several sessions share
    queues, appends             where concurrent appends meet; what writes them
    counting                    token counts, and other figures of entries
    reading, large              entries with their counts, records; large contents
    items                       items and leases
    sessions, crowds            sessions: looked at, remembered, written; back-off when many write at once
    known, forms                a session as it was last seen; the stored form of rows and heads
"""
