"""Commitments that are made before anything of the step is known."""

import pytest
import torch

from troth.crypto import Digest, Identity, Slot, blob_digest, coin_commitment, leaf_hash, merkle_tree, root_from_path
from troth.protocol.core.parts import ProvenPart, commit_parts, opens, part_bounds, rows_of
from troth.protocol.core.roles import combine, right_openings
from troth.protocol.wire.blob import Blob
from troth.protocol.wire.messages import Phase
from troth.protocol.wire.primitives import Primitives

TOOLS = Primitives()
ALICE, BOB = (Identity.from_secret(bytes([k]) * 32).peer for k in (1, 2))
HERE = Slot(Digest(b"r" * 32), 7, Phase.COMMIT)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 15, 16])
def test_every_part_opens_the_root_in_its_own_place_only(parts: int) -> None:
    """[C1, C3]"""
    gradient_D = torch.randn(101, generator=torch.Generator().manual_seed(parts))
    bounds = part_bounds(101, parts)
    committed = commit_parts(gradient_D, bounds)
    for part, proven in enumerate(committed.proven_parts):
        assert opens(proven, part, bounds, committed.root)
        assert torch.equal(proven.blob.numbers_D(), gradient_D[bounds[part] : bounds[part + 1]])
        for other in range(parts):
            assert opens(proven, other, bounds, committed.root) == (other == part)


def test_a_part_that_was_not_committed_to_does_not_open() -> None:
    """[C3] Another blob, a shorter one, a path that is cut or too long."""
    bounds = part_bounds(40, 5)
    committed = commit_parts(torch.ones(40), bounds)
    good = committed.proven_parts[2]
    for bad in (
        ProvenPart(Blob.of(torch.full((8,), 2.0)), good.path),
        ProvenPart(Blob(good.blob.view[:-4]), good.path),
        ProvenPart(Blob(bytes(good.blob.view) + bytes(4)), good.path),
        ProvenPart(good.blob, good.path[:-1]),
        ProvenPart(good.blob, (*good.path, Digest(bytes(32)))),
        ProvenPart(good.blob, ()),
    ):
        assert not opens(bad, 2, bounds, committed.root)


def test_a_leaf_binds_index_length_format_and_bytes() -> None:
    """[C1] None of the four can be exchanged under the same leaf."""
    blob = blob_digest(b"x")
    leaves = {
        leaf_hash(0, 1, "float32", blob),
        leaf_hash(1, 1, "float32", blob),
        leaf_hash(0, 2, "float32", blob),
        leaf_hash(0, 1, "float64", blob),
        leaf_hash(0, 1, "float32", blob_digest(b"y")),
    }
    assert len(leaves) == 5


def test_a_node_cannot_pass_for_a_leaf() -> None:
    """[C1] Inner nodes are tagged apart, so that a subtree does not open as a part."""
    leaves = [leaf_hash(k, 1, "float32", blob_digest(bytes([k]))) for k in range(4)]
    root, _ = merkle_tree(leaves)
    inner, _ = merkle_tree(leaves[:2])
    other, _ = merkle_tree(leaves[2:])
    assert root_from_path(inner, 0, 2, [other]) == root  # as a tree of two it would
    assert root_from_path(inner, 0, 4, [other]) is None  # but the number of parts is agreed
    with pytest.raises(ValueError, match="at least one leaf"):
        merkle_tree([])


def test_a_part_that_is_not_finite_counts_as_zeros() -> None:
    """[C3] Only that part; and the root still commits to what was sent, so that an audit finds it."""
    gradient_D = torch.tensor([1.0, float("nan"), 2.0, 3.0])
    committed = commit_parts(gradient_D, (0, 2, 4))
    assert opens(committed.proven_parts[0], 0, (0, 2, 4), committed.root)
    assert rows_of(committed.proven_parts).tolist() == [[0.0, 0.0], [2.0, 3.0]]
    assert committed.root != commit_parts(torch.tensor([0.0, 0.0, 2.0, 3.0]), (0, 2, 4)).root


def test_a_coin_counts_only_if_it_fits_its_commitment() -> None:
    """[C2] And a commitment copied from another peer, step or coin is worth nothing."""
    coin = b"c" * 32
    commitment = coin_commitment(coin, HERE, ALICE, "A")
    assert right_openings("A", {ALICE: commitment}, {ALICE: coin}, HERE, TOOLS) == {ALICE: coin}
    assert right_openings("A", {ALICE: commitment}, {ALICE: b"d" * 32}, HERE, TOOLS) == {}
    assert right_openings("B", {ALICE: commitment}, {ALICE: coin}, HERE, TOOLS) == {}
    assert right_openings("A", {BOB: commitment}, {BOB: coin}, HERE, TOOLS) == {}
    later = Slot(HERE.run, 8, Phase.COMMIT)
    assert right_openings("A", {ALICE: commitment}, {ALICE: coin}, later, TOOLS) == {}
    assert right_openings("A", {}, {ALICE: coin}, HERE, TOOLS) == {}


def test_randomness_depends_on_every_coin_and_on_the_step() -> None:
    """[R1, A4] A single honest coin changes everything; the order of arrival changes nothing."""
    coins = {ALICE: b"a" * 32, BOB: b"b" * 32}
    drawn = combine("roles", 3, 0, coins)
    assert combine("roles", 3, 0, dict(reversed(coins.items()))) == drawn
    assert combine("roles", 4, 0, coins) != drawn
    assert combine("projections", 3, 0, coins) != drawn
    assert combine("roles", 3, 0, {**coins, BOB: b"c" * 32}) != drawn
    assert combine("roles", 3, 0, {ALICE: coins[ALICE]}) != drawn
    assert combine("roles", 3, 1, coins) != drawn  # another attempt
