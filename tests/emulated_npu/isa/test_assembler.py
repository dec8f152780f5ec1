"""Text and binary are exactly equivalent; an error in the text names its line."""

import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from instruction_strategies import programs

from device_agents.emulated_npu.emulator_errors import InvalidProgram
from device_agents.emulated_npu.isa.assembly import assemble, disassemble
from device_agents.emulated_npu.isa.encoding import decode, encode
from device_agents.emulated_npu.isa.instructions import DataInstruction, Instruction, Opcode, OperandReference, control
from device_agents.emulated_npu.isa.settings_words import WORDS, settings_words
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Activation, Settings

PAGE = Path(__file__).parents[3] / "docs" / "isa.md"


@given(programs())
def test_binary_to_text_and_back(instructions: list[Instruction]) -> None:
    """Assembling a disassembly gives the same bytes, and disassembling those gives the same text."""
    code = encode(instructions)
    text = disassemble(code)
    assert assemble(text) == code
    assert disassemble(assemble(text)) == text


@given(programs(), st.data())
def test_comments_blanks_and_indents_mean_nothing(program: list[Instruction], data: st.DataObject) -> None:
    """Comments, empty lines and the amount of white space do not change the code."""
    code = encode(program)
    lines = []
    for line in disassemble(code).splitlines():
        statement = line.partition("#")[0].strip()
        lines += data.draw(st.sampled_from([[], [""], ["# note"], ["   "]]))
        lines.append(
            "\t" + statement.replace(", ", " ,  ").replace(" ", "  ", 1) + data.draw(st.sampled_from(["", "#x:"]))
        )
    assert assemble("\n".join(lines)) == code


def test_what_a_program_looks_like() -> None:
    """A disassembly contains names, labels, operands and readable settings."""
    modes, alpha = (settings_words(Settings(activation=Activation.LEAKY_RELU, alpha=0.1))[k] for k in (4, 5))
    code = encode(
        [
            control(Opcode.SETTINGS, 1, WORDS.index("modes"), modes),
            control(Opcode.SETTINGS, 1, WORDS.index("alpha"), alpha),
            DataInstruction(
                Function.CONVOLVE,
                OperandReference(1, 2),
                OperandReference(3, 4),
                OperandReference(5, 6),
                None,
                OperandReference(7, 8),
                1,
                True,
            ),
            control(Opcode.BRANCH_LESS, 9, 10, 2),
            control(Opcode.HALT),
        ]
    )
    assert disassemble(code).splitlines() == [
        "    settings s1, modes, 0x0000000000000002  # activation LEAKY_RELU, axes 0b000000, mode 0",
        "    settings s1, alpha, 0x3fb999999999999a  # 0.1",
        "L2:",
        "    convolve target=r1:d2, first=r3:d4, second=r5:d6, fourth=r7:d8, settings=s1, accumulate",
        "    branch_less r9, r10, L2",
        "    halt",
    ]


def test_labels_may_stand_anywhere() -> None:
    """Labels may precede an instruction, stand alone or in groups, and come before or after the jump."""
    code = assemble("start: jump end\na:\nb: c: fence\njump start\nend: halt")
    assert decode(code) == [
        control(Opcode.JUMP, 3),
        control(Opcode.FENCE),
        control(Opcode.JUMP, 0),
        control(Opcode.HALT),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("jump nowhere", "no label nowhere"),
        ("here: fence", "is defined twice"),
        ("frobnicate r1", "no instruction `frobnicate`"),
        ("halt 1", "followed by nothing"),
        ("set r1", "followed by rd, value"),
        ("set r0, 1", "rd is not in 1..255"),
        ("set 1, 1", "written rN"),
        ("set r1, 0b1", "written as a number"),
        ("set r1, 9223372036854775808", "not in"),
        ("axis d1, 6, 1, 1", "axis is not in 0..5"),
        ("descriptor d1, dram, float32, 1", "one of ddr, llc, nb, sb, halo"),
        ("load_register r1, nb, float32, r2, 0", "not an integer"),
        ("settings s1, kernel, 0x0", "are invalid"),
        ("load first=r1:d1", "no target"),
        ("load target=r1:d1", "lacks"),
        ("load target=r1:d1, target=r1:d1", "twice"),
        ("load target=r1, first=r1:d1", "a register and a descriptor slot"),
        ("load target=r1:d1, first=r999:d1", "cannot be encoded"),
        ("map target=r1:d1, first=r1:d1, accumulate", "does not take"),
        ("map target=r1:d1, first=r1:d1, saturate", "not an operand"),
        ("jump behind", "jumps out of the program"),
    ],
)
def test_a_mistake_names_its_line(line: str, complaint: str) -> None:
    """The error for any invalid line gives its number, counting comments and labels."""
    with pytest.raises(InvalidProgram, match=f"line 4: .*{re.escape(complaint)}"):
        assemble(f"# comment\nhere:\n halt\n{line}\n halt\nbehind:")


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_assembles_or_is_an_invalid_program(text: str) -> None:
    """No text raises anything but InvalidProgram."""
    try:
        code = assemble(text)
    except InvalidProgram:
        return
    assert assemble(disassemble(code)) == code


def test_the_example_of_the_page_assembles() -> None:
    """The program in docs/isa.md assembles."""
    (example,) = re.findall(r"```\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert decode(assemble(example))[-1] == control(Opcode.HALT)
