"""Values of any message type, drawn from the type itself: a field or frame that is added is fuzzed without being told."""

import math
import re
from functools import cache
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

MOST_ITEMS, MOST_BYTES = 3, 40  # more than a type asks for


@cache
def _info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def drawn(kind: Any, random: Random) -> Any:
    """A value that a strict decoder of this type accepts: often at the edge of what it allows, seldom long."""
    return _value(_info(kind), random)


def field_types(struct: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    info = _info(struct)
    assert isinstance(info, inspect.StructType)
    return {field.name: field.type for field in info.fields}


def drawn_field(struct: type[msgspec.Struct], name: str, random: Random) -> Any:
    return _value(field_types(struct)[name], random)


def _value(info: inspect.Type, random: Random) -> Any:
    match info:
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return random.random() < 0.5
        case inspect.IntType():
            return _integer(info, random)
        case inspect.FloatType():
            return random.choice([0.0, -0.0, 1.5, -1.0, 5e-324, 1e308, 2.0**400, math.inf, math.nan, random.random()])
        case inspect.StrType():
            texts = ["", "0", "00ff", "ünïcode", random.randbytes(32).hex()]
            return random.choice([text for text in texts if info.pattern is None or re.search(info.pattern, text)])
        case inspect.BytesType():
            return random.randbytes(_length(info, random, MOST_BYTES))
        case inspect.MemoryViewType():
            return memoryview(random.randbytes(random.randint(0, MOST_BYTES)))
        case inspect.EnumType():
            return random.choice(list(info.cls))
        case inspect.UnionType():
            return _value(random.choice(info.types), random)
        case inspect.VarTupleType():
            return tuple(_value(info.item_type, random) for _ in range(_length(info, random, MOST_ITEMS)))
        case inspect.TupleType():
            return tuple(_value(item, random) for item in info.item_types)
        case inspect.ListType():
            return [_value(info.item_type, random) for _ in range(_length(info, random, MOST_ITEMS))]
        case inspect.DictType():
            length = _length(info, random, MOST_ITEMS)
            return {_value(info.key_type, random): _value(info.value_type, random) for _ in range(length)}
        case inspect.StructType():
            fields = {field.name: _value(field.type, random) for field in info.fields}
            if "gone" in fields:  # in order, each once, and only where there are values; else it is no frame (SPEC Q9)
                for name in ("gone", "broken_off"):
                    fields[name] = tuple(sorted(set(fields[name]))) if fields["values"] is not None else ()
            return info.cls(**fields)
        case _:
            raise NotImplementedError(f"messages hold a type that is not drawn yet: {info}")


def _integer(info: inspect.IntType, random: Random) -> int:
    least = info.ge if info.ge is not None else -(2**63)
    most = info.le if info.le is not None else info.lt - 1 if info.lt is not None else 2**64 - 1
    return random.choice([least, min(least + 1, most), max(least, most - 1), most, random.randint(least, most)])


def _length(
    info: inspect.BytesType | inspect.VarTupleType | inspect.ListType | inspect.DictType, random: Random, more: int
) -> int:
    least = info.min_length or 0
    most = least + more if info.max_length is None else min(info.max_length, least + more)
    return random.randint(least, most)
