"""Structures and numbers of the driver's interface in pymm are those of NVIDIA's bindings."""

from __future__ import annotations

import ast
import ctypes
import struct
from importlib import import_module
from pathlib import Path

import pytest
from cuda.bindings import driver as cu

from pymm.backends import cuda as package

pytestmark = pytest.mark.simulator


@pytest.fixture(scope="module")
def module(cuda):
    """Modules of the backend by name; some can be imported only where there is a driver."""
    return lambda name: import_module(f"pymm.backends.cuda.{name}")


SIZES = (
    *("gridDimX", "gridDimY", "gridDimZ"),
    *("blockDimX", "blockDimY", "blockDimZ"),
    "sharedMemBytes",
)

#: Each structure, NVIDIA's of the same memory, and the fields by name. Padding is not compared.
STRUCTURES = {
    ("driver", "_LaunchConfig"): (
        cu.CUlaunchConfig,
        {"sizes": SIZES, "stream": "hStream", "attributes": "attrs", "count": "numAttrs"},
    ),
    ("graphs", "_Kernel"): (
        cu.CUDA_KERNEL_NODE_PARAMS_v2,
        {
            **{"function": "func", "sizes": SIZES, "parameters": "kernelParams"},
            **{"extra": "extra", "kernel": "kern", "context": "ctx"},
        },
    ),
    ("queues", "_Copy2D"): (
        cu.CUDA_MEMCPY2D,
        {
            **{"source_x": "srcXInBytes", "source_y": "srcY", "source_kind": "srcMemoryType"},
            **{"source_host": "srcHost", "source_device": "srcDevice"},
            **{"source_array": "srcArray", "source_pitch": "srcPitch"},
            **{"target_x": "dstXInBytes", "target_y": "dstY", "target_kind": "dstMemoryType"},
            **{"target_host": "dstHost", "target_device": "dstDevice"},
            **{"target_array": "dstArray", "target_pitch": "dstPitch"},
            **{"width": "WidthInBytes", "height": "Height"},
        },
    ),
}

#: What a field is set to: a number with all bytes different, an object of NVIDIA's with that
#: number, or, for enumerations, their greatest value.
WORD, NUMBER = 0xFEDCBA98, 0xFEDCBA9876543210
OBJECTS = {
    **{"hStream": cu.CUstream, "func": cu.CUfunction, "kern": cu.CUkernel, "ctx": cu.CUcontext},
    **{"srcDevice": cu.CUdeviceptr, "dstDevice": cu.CUdeviceptr},
    **{"srcArray": cu.CUarray, "dstArray": cu.CUarray},
}
WORDS = {*SIZES, "numAttrs"}
KINDS = {"srcMemoryType", "dstMemoryType"}


def memory(thing) -> bytes:
    """The bytes of one of NVIDIA's structures."""
    room = (ctypes.c_ubyte * cu.sizeof(type(thing))).from_address(thing.getPtr())
    return bytes(room)


def with_field(kind, name):
    """NVIDIA's structure with one field set, and that field's number."""
    made = kind()
    if name == "attrs":  # an array that the structure owns, whose address only its memory tells
        made.attrs = [cu.CUlaunchAttribute()]
        return made, max(struct.unpack("<7Q", memory(made)))
    if name in KINDS:
        setattr(made, name, cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED)
        return made, int(cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED)
    number = WORD if name in WORDS else NUMBER
    setattr(made, name, OBJECTS[name](number) if name in OBJECTS else number)
    return made, number


def numbers(structure) -> dict[str, int]:
    """Every field of one of pymm's structures, as numbers by name and place."""
    found = {}
    for name, _ in structure._fields_:
        value = getattr(structure, name)
        parts = list(value) if isinstance(value, ctypes.Array) else [value]
        found |= {f"{name}[{place}]": part or 0 for place, part in enumerate(parts)}
    return found


@pytest.mark.parametrize("file, name", STRUCTURES)
def test_a_structure_is_laid_out_as_nvidias(module, file, name):
    ours, (theirs, fields) = getattr(module(file), name), STRUCTURES[file, name]
    assert ctypes.sizeof(ours) == cu.sizeof(theirs)
    assert list(fields) == [name for name, _ in ours._fields_]
    for name, names in fields.items():
        for place, one in enumerate([names] if isinstance(names, str) else names):
            made, number = with_field(theirs, one)
            read = numbers(ours.from_buffer_copy(memory(made)))
            assert number and read[f"{name}[{place}]"] == number, one
            del read[f"{name}[{place}]"]
            assert one == "attrs" or not any(read.values()), one


def test_every_structure_is_compared():
    """Those whose bytes are compared are `_LaunchAttribute` and `_Edge`."""
    found = set()
    for path in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            bases = map(ast.unparse, getattr(node, "bases", ()))
            if "ctypes.Structure" in bases:
                found.add((path.stem, node.name))
    assert found == {*STRUCTURES, ("driver", "_LaunchAttribute"), ("graphs", "_Edge")}


def test_structures_that_never_change_are_nvidias_byte_for_byte(module):
    driver, graphs = module("driver"), module("graphs")
    early = cu.CUlaunchAttribute()
    kinds = cu.CUlaunchAttributeID
    early.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    early.value.programmaticStreamSerializationAllowed = 1
    assert bytes(driver._EARLY) == memory(early)
    clusters = cu.CUlaunchAttribute()
    clusters.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    for axis, blocks in zip("xyz", (4, 1, 1), strict=True):
        setattr(clusters.value.clusterDim, axis, blocks)
    assert bytes(driver._in_clusters(4)) == memory(clusters)
    edge = cu.CUgraphEdgeData()
    assert bytes(graphs._ORDINARY) == memory(edge)
    edge.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
    edge.type = cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
    assert bytes(graphs._EARLY) == memory(edge)
    for place, value in enumerate(("from_port", "to_port", "type")):
        other = cu.CUgraphEdgeData()
        setattr(other, value, 255)
        assert memory(other)[place] == 255 and getattr(graphs._Edge, value).offset == place


def test_packed_arguments_are_announced_by_nvidias_numbers(module):
    driver = module("driver")
    room = driver.shown(b"abc")
    pointer, place, size, where, end, count = driver._SHOWN.unpack_from(room)
    assert pointer == cu.CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT
    assert size == cu.CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT
    assert end == cu.CU_LAUNCH_PARAM_END_AS_INT
    assert ctypes.string_at(place, 3) == b"abc"
    assert count == 3 and where == ctypes.addressof(room) + 5 * 8


#: Every number of the driver's interface that pymm has: module, name, key; what NVIDIA calls it.
NUMBERS = [
    ("driver", "_OUT_OF_MEMORY", None, cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY),
    ("queues", "_PEER_ALREADY", None, cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    ("driver", "_DISABLE_TIMING", None, cu.CUevent_flags.CU_EVENT_DISABLE_TIMING),
    ("queues", "_DISABLE_TIMING", None, cu.CUevent_flags.CU_EVENT_DISABLE_TIMING),
    ("driver", "_NON_BLOCKING", None, cu.CUstream_flags.CU_STREAM_NON_BLOCKING),
    ("queues", "_NON_BLOCKING", None, cu.CUstream_flags.CU_STREAM_NON_BLOCKING),
    ("queues", "_PORTABLE", None, cu.CU_MEMHOSTALLOC_PORTABLE),
    (
        "driver",
        "_SHARED_SIZE",
        None,
        cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    ),
    (
        "driver",
        "_CLUSTER_DIMENSION",
        None,
        cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
    ),
    ("driver", "_SWIZZLES", 0, cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE),
    ("driver", "_SWIZZLES", 32, cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B),
    ("driver", "_SWIZZLES", 64, cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B),
    ("driver", "_SWIZZLES", 128, cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
    ("driver", "_PROMOTE_128", None, cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
    ("driver", "MAP_BYTES", None, cu.sizeof(cu.CUtensorMap)),
    ("tma", "KINDS", "float16", cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
    ("tma", "KINDS", "float32", cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32),
    ("tma", "KINDS", "float64", cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT64),
    ("tma", "KINDS", "bfloat16", cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
    ("tma", "ROUNDED_KIND", None, cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32),
    ("driver", "LEGACY", 1, cu.CU_STREAM_LEGACY),
    ("driver", "PER_THREAD", None, cu.CU_STREAM_PER_THREAD),
    ("driver", "_RELAXED", None, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED),
    ("driver", "_ACTIVE", None, cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE),
    (
        "driver",
        "_NO_DESTRUCTOR_SYNC",
        None,
        cu.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC,
    ),
    ("driver", "_MOVE", None, cu.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE),
    ("queues", "_MEMORY_TYPE", None, cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
    ("queues", "_HOST", None, cu.CUmemorytype.CU_MEMORYTYPE_HOST),
    ("queues", "_DEVICE", None, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE),
    ("queues", "_UNIFIED", None, cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED),
]


@pytest.mark.parametrize(
    "file, name, key, theirs", NUMBERS, ids=[f"{name}-{key}" for _, name, key, _ in NUMBERS]
)
def test_a_number_is_nvidias(module, file, name, key, theirs):
    ours = getattr(module(file), name)
    assert (ours if key is None else ours[key]) == int(theirs)
