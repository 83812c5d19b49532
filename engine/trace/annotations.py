"""Classes for type annotations in the tracer, imported from here to avoid import cycles.

The modules of these classes import the variables and opcode handlers, which need the classes only in annotations.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.bytecode.decode import DecodedInstruction
    from engine.trace.codegen import PyCodegen
    from engine.trace.frame import Frame
    from engine.trace.state import CallStack, InstructionCounter
    from engine.trace.tracer import Tracer
    from engine.trace.variables.base import Variable
    from engine.trace.variables.callables.cells import CellVariable
    from engine.trace.variables.callables.functions import FunctionVariable, UserFunctionVariable
    from engine.trace.variables.callables.generators import GeneratorVariable
    from engine.trace.variables.callables.methods import BuiltinMethodVariable
    from engine.trace.variables.containers.builtin_subclasses import DictSubclassVariable
    from engine.trace.variables.containers.dicts import DictVariable
    from engine.trace.variables.containers.ranges_and_slices import RangeVariable
    from engine.trace.variables.containers.sequences import SequenceVariable
    from engine.trace.variables.containers.sets import SetVariable
    from engine.trace.variables.exceptions.exceptions import ExceptionVariable
    from engine.trace.variables.nn_modules.nn_module import NNModuleVariable
    from engine.trace.variables.objects.class_creation import NewClassVariable
    from engine.trace.variables.objects.classes import ClassVariable
    from engine.trace.variables.objects.instance_attributes import InstanceVariable
    from engine.trace.variables.tensors.tensor import TensorVariable
else:
    CallStack = DecodedInstruction = Frame = InstructionCounter = PyCodegen = Tracer = Any
    BuiltinMethodVariable = CellVariable = ClassVariable = DictSubclassVariable = DictVariable = Any
    ExceptionVariable = FunctionVariable = GeneratorVariable = InstanceVariable = NNModuleVariable = Any
    NewClassVariable = RangeVariable = SequenceVariable = SetVariable = TensorVariable = Any
    UserFunctionVariable = Variable = Any
