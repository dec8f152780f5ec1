"""Einsum becomes products of matrices or element by element, sums, and views."""

import pytest
from small_models import functions, imported, model, node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator

PRODUCTS = {
    "bhid,bhjd->bhij": ((2, 3, 5, 4), (2, 3, 6, 4)),
    "bihd,bjhd->bhij": ((1, 5, 3, 4), (1, 6, 3, 4)),
    "bhij,bjhd->bihd": ((2, 3, 5, 6), (2, 6, 3, 4)),
    "bchw,kc->bkhw": ((2, 6, 5, 4), (7, 6)),
    "...ij,...jk->...ik": ((2, 3, 4, 5), (2, 3, 5, 6)),
    "ij,jk": ((4, 5), (5, 6)),
    "i,i->": ((5,), (5,)),
    "abcd,cde->abe": ((2, 3, 4, 5), (4, 5, 6)),
    "ij,kj->ki": ((4, 5), (6, 5)),
    "nctkv,vw->nctkw": ((1, 3, 4, 2, 5), (5, 6)),
    "bij,bjk->ikb": ((2, 3, 4), (2, 4, 5)),
    "bij,bjk->bik": ((5, 3, 4), (1, 4, 2)),
}


@pytest.mark.parametrize("constant", ["", "first", "second"])
@pytest.mark.parametrize("equation", PRODUCTS)
def test_products_of_matrices(equation: str, constant: str) -> None:
    """Sums of products over common labels are products of matrices; a constant operand becomes weights."""
    operands = {name: values(shape, at) for at, (name, shape) in enumerate(zip("xw", PRODUCTS[equation], strict=True))}
    fixed = {"first": "x", "second": "w"}.get(constant)
    given = {name: array for name, array in operands.items() if name != fixed}
    weights = {name: array for name, array in operands.items() if name == fixed}
    graph = imported(model([node("Einsum", "x w", "y", equation=equation)], given, weights), given)
    assert "CONVOLVE" in functions(graph)


@pytest.mark.parametrize(("equation", "shapes"), [("bij,bj->bij", ((2, 3, 4), (2, 4))), ("i,j->ji", ((3,), (4,)))])
def test_products_element_by_element(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Without a sum, operands broadcast and are multiplied."""
    given = {"x": values(shapes[0]), "w": values(shapes[1], 1)}
    graph = imported(model([node("Einsum", "x w", "y", equation=equation)], given), given)
    assert functions(graph) == ["BINARY"]


def test_one_operand_is_permuted() -> None:
    """One operand whose labels all remain is a permutation."""
    x = values((2, 3, 4))
    imported(
        model([node("Einsum", "x", "y", equation="abc->cab"), node("Relu", "y", "z")], {"x": x}, outputs=["z"]),
        {"x": x},
    )


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij->i", [(3, 4)]),
        ("ijk->", [(2, 3, 4)]),
        ("ija,jk->ik", [(2, 3, 4), (3, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("bhd,hdr,hre->bhe", [(2, 3, 4), (3, 4, 5), (3, 5, 6)]),
        ("bi,bj,bk,ijkl->bl", [(2, 3), (2, 4), (2, 5), (3, 4, 5, 6)]),
        ("i,j,k->ijk", [(2,), (3,), (4,)]),
    ],
)
@pytest.mark.parametrize("constant", ["", "first", "last"])
def test_sums_and_several_operands(equation: str, shapes: list[tuple[int, ...]], constant: str) -> None:
    """Axes of one operand alone are summed first; several operands are multiplied two at a time."""
    tensors = {f"x{at}": values(shape, at) for at, shape in enumerate(shapes)}
    fixed = {"first": "x0", "last": f"x{len(shapes) - 1}"}.get(constant) if len(shapes) > 1 else None
    fed = {name: array for name, array in tensors.items() if name != fixed}
    weights = {name: array for name, array in tensors.items() if name == fixed}
    imported(model([node("Einsum", " ".join(tensors), "y", equation=equation)], fed, weights), fed)


@pytest.mark.parametrize(
    ("equation", "shapes"), [("ii->i", [(3, 3)]), ("bij,bjk->bik", [(1, 3, 4), (5, 4, 2)]), ("i,i->i", [(1,), (3,)])]
)
def test_what_is_no_product_is_refused(equation: str, shapes: list[tuple[int, ...]]) -> None:
    """Diagonals, and axes that a later operand broadcasts, are refused, not computed wrongly."""
    given = {f"x{at}": values(shape) for at, shape in enumerate(shapes)}
    proto = model([node("Einsum", " ".join(given), "y", equation=equation)], given)
    with pytest.raises(UnsupportedOperator):
        import_model(proto.SerializeToString())
