"""The options of a summarizer's knowledge base, and of how texts are split for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from palimpsest.context.conditions import parse
from palimpsest.errors import ConfigError, nearest
from palimpsest.log import values
from palimpsest.log.codec import ready
from palimpsest.log.ids import is_id

SearchType: TypeAlias = Literal["similarity", "mmr", "keyword", "hybrid"]
"""How a knowledge base is searched: by meaning, by meaning or words with variety, by words, or by both."""
SEARCH_TYPES: tuple[SearchType, ...] = ("similarity", "mmr", "keyword", "hybrid")

MODES = ("always", "on_demand", "never")
"""When contexts get what a knowledge base holds. Any other text is a condition."""

Embed: TypeAlias = "str | Callable[[list[str]], Any] | object"
"""What makes a vector of each text: a model's name, such as "wordllama", a function or coroutine function that takes a
list of texts, or an object with `embed_documents` or `encode`."""

EMBEDS = ("embed_documents", "encode")
EMBEDDER = 'a model\'s name such as "wordllama", a function from a list of texts to vectors, or an object with encode'
SIZE, OVERLAP, TOP_K, LAMBDA = 512, 64, 4, 0.5
MOST_SEPARATORS = 64
KINDS = ("recursive", "sentence", "markdown", "none")
_NAMED = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = ("session_id", "user_id")


class TextSplitter(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """How texts are split into the chunks of a knowledge base.

    Args:
        type: where a text is cut: "recursive" (default) at paragraphs, else lines, sentences, words; "sentence";
            "markdown" before headings; "none": not at all.
        chunk_size: the most that a chunk holds; 512 by default.
        chunk_overlap: the most that a chunk repeats of the one before it, less than `chunk_size`; 64 by default.
        unit: the unit of both: "tokens" (default) or "chars".
        separators: texts to cut after, the best first, instead of those of the type; None: those of the type.
        keep_separator: whether a chunk keeps the separators that it begins and ends with; True by default.
        min_chunk: the least size of the last chunk, which repeats more of the one before it to reach it; 0 by default.
        add_start_index: whether the metadata of a chunk says at which character it begins; False by default.
    """

    type: Literal["recursive", "sentence", "markdown", "none"] = "recursive"
    chunk_size: int = SIZE
    chunk_overlap: int = OVERLAP
    unit: Literal["tokens", "chars"] = "tokens"
    separators: tuple[str, ...] | None = None
    keep_separator: bool = True
    min_chunk: int = 0
    add_start_index: bool = False

    def __post_init__(self) -> None:
        values.choice("type", self.type, KINDS)
        values.choice("unit", self.unit, ("tokens", "chars"))
        values.whole("chunk_size", self.chunk_size, 1)
        values.whole("chunk_overlap", self.chunk_overlap)
        values.whole("min_chunk", self.min_chunk)
        if self.chunk_overlap >= self.chunk_size:
            allowed = f"less than chunk_size, which is {self.chunk_size}"
            raise ConfigError("chunk_overlap", self.chunk_overlap, allowed)
        if self.min_chunk > self.chunk_size:
            raise ConfigError("min_chunk", self.min_chunk, f"at most chunk_size, which is {self.chunk_size}")
        separators = self.separators
        if separators is not None:
            all_texts = isinstance(separators, tuple) and all(isinstance(separator, str) for separator in separators)
            if not all_texts or len(separators) > MOST_SEPARATORS:
                raise ConfigError("separators", separators, f"a list of at most {MOST_SEPARATORS} texts, or None")
        for name in ("keep_separator", "add_start_index"):
            values.switch(name, getattr(self, name))


ready(TextSplitter)


class KnowledgeBase(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, omit_defaults=True):
    """The collection that a summarizer's summaries are stored in, and what contexts get from it.

    Args:
        collection_id: its name, in which `{session_id}` and `{user_id}` stand for the ids of the session and its user.
        search_mode: when contexts get what answers the newest human message: "always" (default), "never", only
            "on_demand" (by explicit searches), or if a condition holds, such as "session.message_count > 20".
        top_k: the most chunks that a search finds; 4 by default.
        search_type: "keyword", "similarity", "hybrid" (both) or "mmr" (with variety); None: "hybrid" with an embedder,
            else "keyword".
        score_threshold: the least score of a found chunk, from 0 to 1; None: any.
        fetch_k: how many chunks "mmr" and "hybrid" choose from; None: 20, or four times `top_k` if that is more.
        lambda_mult: what counts for "mmr", from 0 (only variety) to 1 (only the question); 0.5 by default.
        max_tokens: the most tokens that a context gets from it; None: as many as the tail has room for.
        write: whether summaries are stored in it (True by default), or it is only searched.
        embedder: what makes a vector of each text: a model's name such as "wordllama", a function or coroutine function
            that takes a list of texts, or an object with `embed_documents` or `encode`. None: words are compared.
    """

    collection_id: str
    search_mode: str = "always"
    top_k: int = TOP_K
    search_type: SearchType | None = None
    score_threshold: float | None = None
    fetch_k: int | None = None
    lambda_mult: float = LAMBDA
    max_tokens: int | None = None
    write: bool = True
    embedder: Any = None

    def __post_init__(self) -> None:
        check_collection(self.collection_id, "collection_id")
        if self.search_mode not in MODES:
            values.text("search_mode", self.search_mode, none=False)
            if self.search_mode.replace("-", "_").isidentifier() and self.search_mode not in ("True", "False"):
                allowed = f"{', '.join(MODES)}, or a condition such as 'session.interaction_count > 3'"
                raise ConfigError("search_mode", self.search_mode, allowed, nearest=nearest(self.search_mode, MODES))
            parse(self.search_mode, "search_mode")
        check_search(self.search_type, self.top_k, self.score_threshold, self.fetch_k, self.lambda_mult, self.embedder)
        values.whole("max_tokens", self.max_tokens, 1, none=True)
        values.switch("write", self.write)

    @property
    def reads(self) -> bool:
        """Whether contexts get anything from it without an explicit search."""
        return self.search_mode not in ("on_demand", "never")

    def collection(self, session: str, user: str | None) -> str:
        """Return the collection of a session. Raises ConfigError if it names a user and the session has none.

        Args:
            session: the session's id.
            user: the session's user; None: none.
        """
        if user is None and "{user_id}" in self.collection_id:
            allowed = "this only in a session with a user: memory.session(…, user=…)"
            raise ConfigError("knowledge_base.collection_id", self.collection_id, allowed)
        ids = {"session_id": session, "user_id": user or ""}
        name = _NAMED.sub(lambda match: ids[match[1]], self.collection_id)
        check_collection(name, "knowledge_base.collection_id", named=True)
        return name


def check_collection(name: object, where: str, *, named: bool = False) -> None:
    """Raise ConfigError unless this is the name of a collection; once `named`, without placeholders."""
    if not isinstance(name, str) or not name.strip() or not (named or is_id(name)):
        raise ConfigError(where, name, "the name of a collection: 1 to 256 characters, no control characters")
    for match in () if named else _NAMED.finditer(name):
        if match[1] not in _PLACEHOLDERS:
            raise ConfigError(where, name, "only the placeholders {session_id} and {user_id}")


def check_search(
    search_type: object, top_k: object, score_threshold: object, fetch_k: object, lambda_mult: object, embedder: object
) -> None:
    """Raise ConfigError, naming the option, for options that do not define a search."""
    if search_type is not None:
        values.choice("search_type", search_type, SEARCH_TYPES)
    values.whole("top_k", top_k, 1)
    values.whole("fetch_k", fetch_k, 1, none=True)
    for name, given in (("score_threshold", score_threshold), ("lambda_mult", lambda_mult)):
        if not (values.is_number(given) and 0 <= given <= 1) and not (given is None and name == "score_threshold"):
            raise ConfigError(name, given, "a number from 0 to 1")
    if embedder is not None and not _embeds(embedder):
        raise ConfigError("embedder", embedder, EMBEDDER)
    if search_type == "similarity" and embedder is None:
        allowed = "keyword, hybrid or mmr; similarity compares vectors: give an embedder"
        raise ConfigError("search_type", search_type, allowed)


def _embeds(given: object) -> bool:
    """Whether this can be an embedder: a name, a function, or an object with one of the methods in `EMBEDS`."""
    if isinstance(given, str):
        return bool(given.strip())
    return callable(given) or any(callable(getattr(given, name, None)) for name in EMBEDS)


BLOCKS: dict[str, type[KnowledgeBase | TextSplitter]] = {
    "knowledge_base": KnowledgeBase,
    "text_splitter": TextSplitter,
}
"""Options of a summarizer, and the type that a mapping under each describes."""


def loaded(key: str, given: object, where: str) -> Any:
    """Return the block that a summarizer was given under this key. Raises ConfigError naming the place.

    Args:
        key: one of `BLOCKS`.
        given: a mapping, in which None means not given; the object itself; or None.
        where: the place of the block.
    """
    kind = BLOCKS[key]
    if given is None or isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(where, type(given).__name__, f"a mapping of {', '.join(kind.__struct_fields__)}")
    values.known(where, given, kind.__struct_fields__, inside=True)
    options = {str(name): value for name, value in given.items() if value is not None}
    if isinstance(options.get("separators"), list):
        options["separators"] = tuple(options["separators"])
    if kind is KnowledgeBase and "collection_id" not in options:
        raise ConfigError(f"{where}.collection_id", None, "the name of a collection")
    try:
        return kind(**options)
    except ConfigError as fault:
        raise ConfigError(f"{where}.{fault.where}", fault.found, fault.allowed, nearest=fault.nearest) from None


Linked: TypeAlias = tuple[KnowledgeBase, TextSplitter]
"""A knowledge base, and how summaries are split for it."""


def linked(strategies: Sequence[object], persistence: str) -> list[Linked]:
    """Return the knowledge bases that strategies name, each with its splitter.

    Raises ConfigError for one that writes in a session of which nothing is stored.

    Args:
        strategies: the session's strategies.
        persistence: when the session stores what is added to it.
    """
    result = list[Linked]()
    for strategy in strategies:
        base = getattr(strategy, "knowledge_base", None)
        if base is not None:
            result.append((base, getattr(strategy, "text_splitter", None) or TextSplitter()))
            if base.write and persistence == "ephemeral":
                allowed = "write=False in an ephemeral session, of which nothing is stored"
                raise ConfigError("knowledge_base.write", True, allowed)
    return result
