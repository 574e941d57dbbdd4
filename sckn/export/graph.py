"""An ONNX graph written down as formulas: `Value` is a tensor that the graph will compute, and it knows arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from sckn.extras import MissingPackageError
from sckn.version import __version__

__all__ = ["Graph", "Value", "onnx_package"]

OPSET = 18  # of the year 2022, so that runtimes that are not new read the file, too
IR_VERSION = 9

Operand: TypeAlias = "Value | np.ndarray | float"


def onnx_package(name: str = "onnx") -> Any:
    """onnx or onnxruntime, where they are installed: they are optional."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingPackageError("an ONNX file", name, "onnx") from None


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a graph, of this type of numbers. Plain numbers and arrays beside it are taken in the same type."""

    graph: Graph
    name: str
    dtype: np.dtype

    __array_ufunc__ = None  # an array on the left leaves the work to us

    def __add__(self, other: Operand) -> Value:
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.graph.node("Sub", self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.graph.node("Mul", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Operand) -> Value:
        return self.graph.node("Sub", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.graph.node("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.graph.node("Div", other, self)

    def __matmul__(self, other: Operand) -> Value:
        return self.graph.node("MatMul", self, other)

    def __rmatmul__(self, other: Operand) -> Value:
        return self.graph.node("MatMul", other, self)

    def __pow__(self, exponent: float) -> Value:
        return self.graph.node("Pow", self, exponent)

    def __gt__(self, other: Operand) -> Value:
        return self.graph.node("Greater", self, other, dtype=np.bool_)

    def equals(self, other: Operand) -> Value:
        return self.graph.node("Equal", self, other, dtype=np.bool_)

    def sqrt(self) -> Value:
        return self.graph.node("Sqrt", self)

    def sum(self, *axes: int) -> Value:
        """Over axes, which stay with one entry."""
        return self.graph.node("ReduceSum", self, _integers(*axes))

    def mean(self, *axes: int) -> Value:
        return self.graph.node("ReduceMean", self, _integers(*axes))

    def max(self, *axes: int) -> Value:
        return self.graph.node("ReduceMax", self, _integers(*axes))

    def transposed(self, *order: int) -> Value:
        return self.graph.node("Transpose", self, perm=order)

    def reshaped(self, *shape: int) -> Value:
        """0 keeps the size of an axis, -1 takes what is left."""
        return self.graph.node("Reshape", self, _integers(*shape))

    def part(self, axis: int, start: int, stop: int) -> Value:
        return self.graph.node("Slice", self, *(_integers(number) for number in (start, stop, axis)))

    def cropped(self, margin: int) -> Value:
        """Without so many rows and columns on each side of an image (B, c, H, W)."""
        if margin == 0:
            return self
        return self.graph.node("Slice", self, _integers(margin, margin), _integers(-margin, -margin), _integers(2, 3))

    def gathered(self, indices: Value | np.ndarray, axis: int) -> Value:
        return self.graph.node("Gather", self, indices, axis=axis)

    def size(self, axis: int) -> Value:
        """A whole number without axes."""
        shape = self.graph.node("Shape", self, dtype=np.int64)
        return self.graph.node("Gather", shape, np.array(axis), dtype=np.int64)

    def cast(self, dtype: Any) -> Value:
        kind = onnx_package().helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.graph.node("Cast", self, dtype=dtype, to=kind)


class Graph:
    """Nodes in the order in which they are added, and the constants that they use.

    A graph inside another (the body of a loop) has a prefix of its own, since names must differ.
    """

    def __init__(self, prefix: str = "") -> None:
        self._onnx = onnx_package()
        self._prefix = prefix
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []

    def input(self, name: str, dtype: Any, shape: Sequence[int | str]) -> Value:
        """What the graph is given; a name among the sizes stands for any size."""
        self._inputs.append(self._described(name, np.dtype(dtype), shape))
        return Value(self, name, np.dtype(dtype))

    def constant(self, array: Any, dtype: Any = None) -> Value:
        array = np.asarray(array, dtype)
        name = f"{self._prefix}constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return Value(self, name, array.dtype)

    def node(self, operator: str, *operands: Operand, dtype: Any = None, **attributes: Any) -> Value:
        """One operator; its result has the type of its first value unless another is given."""
        common = next(operand.dtype for operand in operands if isinstance(operand, Value))
        values = [operand if isinstance(operand, Value) else self._beside(operand, common) for operand in operands]
        name = f"{self._prefix}{operator}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, [value.name for value in values], [name], **attributes))
        return Value(self, name, np.dtype(dtype or common))

    def where(self, condition: Value, yes: Operand, no: Operand) -> Value:
        like = next(value.dtype for value in (yes, no) if isinstance(value, Value))
        yes, no = (value if isinstance(value, Value) else self.constant(value, like) for value in (yes, no))
        return self.node("Where", condition, yes, no, dtype=like)

    def loop(self, body: Graph, rounds: int, start: Value, result: Value, again: Value) -> Value:
        """Repeat `body`, whose inputs are the round, a condition and the state, while `again` is true, at most `rounds` times.

        The body may use values of this graph, which stay the same.
        """
        inner = body._finished("body", [(again, []), (result, None)])
        count, condition = self.constant(rounds, np.int64), self.constant(True, np.bool_)
        return self.node("Loop", count, condition, start, dtype=start.dtype, body=inner)

    def to_bytes(
        self, name: str, description: str, output: Value, shape: Sequence[int | str], metadata: Mapping[str, str]
    ) -> bytes:
        """The whole file; `output` is what the graph computes."""
        helper = self._onnx.helper
        model = helper.make_model(
            self._finished(name, [(output, shape)]),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="sckn",
            producer_version=__version__,
            doc_string=description,
        )
        helper.set_model_props(model, dict(metadata))
        self._onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()

    def renamed(self, value: Value, name: str) -> Value:
        """The same tensor under a name of its own, as results have."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value.name], [name]))
        return Value(self, name, value.dtype)

    def _beside(self, operand: np.ndarray | float, dtype: np.dtype) -> Value:
        """Whole numbers in arrays are indices and stay what they are."""
        whole = isinstance(operand, np.ndarray) and operand.dtype == np.int64
        return self.constant(operand, np.int64 if whole else dtype)

    def _described(self, name: str, dtype: np.dtype, shape: Sequence[int | str] | None) -> Any:
        helper = self._onnx.helper
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)

    def _finished(self, name: str, outputs: Sequence[tuple[Value, Sequence[int | str] | None]]) -> Any:
        described = [self._described(value.name, value.dtype, shape) for value, shape in outputs]
        return self._onnx.helper.make_graph(self._nodes, name, self._inputs, described, self._constants)


def _integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)
