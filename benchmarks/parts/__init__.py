"""The parts of `make bench`, one idea each, in the order of how soon they would show a fault."""

from __future__ import annotations

from benchmarks.board import Part
from benchmarks.parts import corpus, growth, proof, reading, register, released, service, speed, steps

PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        proof.PART,
        released.PART,
        growth.PART,
        corpus.PART,
        register.PART,
        reading.PART,
        steps.PART,
        service.PART,
        speed.PART,
    )
}
