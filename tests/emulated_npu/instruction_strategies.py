"""Random valid instructions and settings, for the tests of the codec, the assembler and program files."""

from hypothesis import strategies as st

from device_agents.emulated_npu.isa.instructions import (
    CONTROL_FIELDS,
    DESCRIPTOR_SLOTS,
    INTEGER_TYPE,
    INTEGER_TYPES,
    JUMP_TARGET,
    MAX_PEER,
    REGISTERS,
    SETTINGS_SLOTS,
    ControlInstruction,
    DataInstruction,
    Instruction,
    Opcode,
    OperandReference,
    control,
)
from device_agents.emulated_npu.isa.settings_words import WORDS, settings_words
from device_agents.emulated_npu.unit_commands import NO_PEER, Function
from device_agents.emulated_npu.unit_settings import UNQUANTISED, Activation, Quantisation, Settings

REFERENCES = st.builds(OperandReference, st.integers(0, REGISTERS - 1), st.integers(0, DESCRIPTOR_SLOTS - 1))


def triples(low: int, high: int) -> st.SearchStrategy[tuple[int, int, int]]:
    """Draw three whole numbers in low..high."""
    return st.tuples(*[st.integers(low, high)] * 3)


QUANTISATIONS = st.just(UNQUANTISED) | st.builds(
    Quantisation,
    scale=st.floats(min_value=0, exclude_min=True, allow_infinity=False, width=32),
    zero_point=st.integers(-(2**16), 2**16 - 1),
)
SETTINGS = st.builds(
    Settings,
    kernel=triples(1, 2**21 - 1),
    stride=triples(1, 2**21 - 1),
    dilation=triples(1, 2**21 - 1),
    pad=triples(-(2**20), 2**20 - 1),
    activation=st.sampled_from(Activation),
    axes=st.integers(0, 63),
    mode=st.integers(0, 2**31 - 1),
    alpha=st.floats(allow_nan=False),
    beta=st.floats(allow_nan=False),
    gamma=st.floats(allow_nan=False),
    quantised_target=QUANTISATIONS,
    quantised_first=QUANTISATIONS,
    quantised_second=QUANTISATIONS,
    quantised_third=QUANTISATIONS,
)


@st.composite
def settings_instructions(draw: st.DrawFn) -> ControlInstruction:
    """Draw a SETTINGS instruction with valid bits."""
    word = draw(st.integers(0, len(WORDS) - 1))
    return control(
        Opcode.SETTINGS, draw(st.integers(1, SETTINGS_SLOTS - 1)), word, settings_words(draw(SETTINGS))[word]
    )


@st.composite
def control_instructions(draw: st.DrawFn, count: int) -> ControlInstruction:
    """Draw a CONTROL or CONFIG instruction of a program of `count` instructions."""
    opcode = draw(st.sampled_from(Opcode))
    if opcode is Opcode.SETTINGS:
        return draw(settings_instructions())
    values = []
    for field in CONTROL_FIELDS[opcode]:
        kind = field.kind
        high = count - 1 if kind is JUMP_TARGET else kind.high
        whole = st.sampled_from(INTEGER_TYPES) if kind is INTEGER_TYPE else st.integers(kind.low, high)
        values.append(int(draw(whole)))
    return control(opcode, *values)


@st.composite
def data_instructions(draw: st.DrawFn) -> DataInstruction:
    """Draw an IO or CP instruction with operands that its function takes."""
    function = draw(st.sampled_from(Function))
    rule = function.rule
    sources = {name: draw(REFERENCES) for name in rule.required}
    sources |= {name: draw(REFERENCES) for name in rule.optional if draw(st.booleans())}
    settings = draw(st.integers(0, SETTINGS_SLOTS - 1))
    return DataInstruction(
        function,
        draw(REFERENCES),
        **sources,
        settings=settings,
        accumulate=rule.accumulates and draw(st.booleans()),
        peer=draw(st.integers(0, MAX_PEER)) if rule.names_peer else NO_PEER,
        own_queue=function.rule.has_own_queue and draw(st.booleans()),
    )


@st.composite
def programs(draw: st.DrawFn) -> list[Instruction]:
    """Draw a list of valid instructions, which need not end."""
    count = draw(st.integers(1, 12))
    one = st.one_of(control_instructions(count), data_instructions())
    return draw(st.lists(one, min_size=count, max_size=count))
