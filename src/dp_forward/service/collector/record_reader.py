"""From the bytes of one body to its records, each checked: format, form, label, and the spread of the noise.

Collectors and shufflers read bodies by this alone. One bad record refuses the whole body.

Edges:
    A client that forgot its noise is refused, as far as the spread of so few numbers can tell
    (`check_noise`). A client that lies harms nobody but himself.
"""

from __future__ import annotations

from dp_forward.service.protocol.collection_spec import CollectionSpec
from dp_forward.service.protocol.frame import WireError
from dp_forward.service.protocol.record import Record, parse_record
from dp_forward.service.server.noise_check import NoiseCheck
from dp_forward.service.server.refusals import Refused

__all__ = ["RecordReader"]

_CODES = {"bits": "dtype", "rows": "shape", "width": "shape", "epsilon": "budget", "delta": "budget"}
"""The fields of a header whose code is not their name."""


class RecordReader:
    """Reads the records of one form; threads may share one."""

    def __init__(self, form: CollectionSpec) -> None:
        self._form = form
        manifest = form.manifest
        self._check_noise = NoiseCheck.of(
            manifest.mechanism(),
            rows=manifest.release.matrix_rows,
            width=manifest.release.width,
            step=manifest.step,
            bits=manifest.release.bits,
        )

    @property
    def form(self) -> CollectionSpec:
        """What is read."""
        return self._form

    @property
    def tells(self) -> bool:
        """Whether a record without noise is always noticed."""
        return self._check_noise.tells

    def one(self, data: bytes) -> Record:
        """One record, or `WireError` (its bytes) or `Refused` (its noise)."""
        if len(data) != self.form.record_bytes:
            raise WireError("length", f"A record has {self.form.record_bytes} bytes here, not {len(data)}")
        record = parse_record(data, labels=self.form.label_count)
        problem = record.header.fits(self.form.manifest)
        if problem is not None:
            field = problem.partition(":")[0]
            raise WireError(_CODES.get(field, field), f"This is not what is collected: {problem}")
        self._check_noise(record.values)
        return record

    def body(self, data: bytes) -> list[Record]:
        """All records of a body, or `Refused` with the index of the first that is none."""
        size = self.form.record_bytes
        self.check_length(len(data))
        records = []
        for index in range(len(data) // size):
            try:
                records.append(self.one(data[index * size : (index + 1) * size]))
            except WireError as error:
                raise Refused(error.code, f"Record {index}: {error.message}") from None
            except Refused as refusal:
                raise Refused(refusal.code, f"Record {index}: {refusal.message}") from None
        return records

    def check_length(self, length: int) -> None:
        """`Refused` for a length that no body can have; the same before and after it was read."""
        size, most = self.form.record_bytes, self.form.body_records
        if length > most * size:
            raise Refused("too_long", f"A body has at most {most} records of {size} bytes here.")
        if length < size or length % size:
            raise Refused("length", f"A body is one or more whole records of {size} bytes.")
