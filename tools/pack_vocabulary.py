"""Pack original `.tiktoken` vocabularies into the package data that `palimpsest.tokens.counter` reads.

    python tools/pack_vocabulary.py PATH [PATH ...] [--into src/palimpsest/tokens/data]

An original has one token a line: its bytes in base64, a space, its rank; ranks run from 0 in file order. The packed
form is the tokens in rank order, each after one byte that holds its length, compressed with zlib. A file's SHA-256
alone tells which encoding it is, so its name does not matter, and an altered file is refused.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import zlib
from pathlib import Path

CHECKSUMS = {
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": "cl100k_base",
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": "o200k_base",
}


def pack(original: bytes) -> bytes:
    """Return the packed form of `original`.

    Raises ValueError if ranks are not in file order, or a token is too long.
    """
    packed = bytearray()
    for rank, line in enumerate(original.splitlines()):
        token, number = line.split()
        raw = base64.b64decode(token, validate=True)
        if int(number) != rank:
            raise ValueError(f"line {rank + 1} has rank {int(number)}; ranks must run from 0 in file order")
        if not 0 < len(raw) < 256:
            raise ValueError(f"line {rank + 1} has a token of {len(raw)} bytes; one byte of length holds 1 to 255")
        packed.append(len(raw))
        packed += raw
    return zlib.compress(bytes(packed), 9)


def main() -> None:
    """Pack each given file, but stop at the first with an unknown checksum."""
    parser = argparse.ArgumentParser(description="Pack original .tiktoken vocabularies.")
    parser.add_argument("originals", nargs="+", type=Path)
    parser.add_argument(
        "--into", type=Path, default=Path(__file__).parents[1] / "src" / "palimpsest" / "tokens" / "data"
    )
    options = parser.parse_args()
    for path in options.originals:
        original = path.read_bytes()
        checksum = hashlib.sha256(original).hexdigest()
        if checksum not in CHECKSUMS:
            raise SystemExit(f"{path.name}: unknown SHA-256 {checksum}; nothing was written for it")
        target = options.into / f"{CHECKSUMS[checksum]}.bin"
        target.write_bytes(pack(original))
        print(f"{target.name}: {target.stat().st_size:,} bytes from {len(original):,}")


if __name__ == "__main__":
    main()
